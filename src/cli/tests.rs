//! Tests of the command line as a whole; those of single values stand beside their parsers.

use std::time::Duration;

use super::*;

fn read(flags: &[&str]) -> Result<Cli, clap::Error> {
    Cli::read(std::iter::once("kvtier-exporter").chain(flags.iter().copied()))
}

fn refusal(flags: &[&str]) -> String {
    let error = read(flags).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    one_line(&error)
}

#[test]
fn without_flags_everything_has_its_default() {
    let cli = read(&[]).unwrap();
    assert_eq!(cli.web.listen, [Listen { host: Some("127.0.0.1".into()), port: 10477 }]);
    assert_eq!(cli.web.telemetry_path, "/metrics");
    assert_eq!(cli.upstream.address, Address::parse("127.0.0.1:8000").unwrap());
    assert_eq!(cli.upstream.main().timeout, Duration::from_secs(10));
    assert_eq!(cli.upstream.main().max_bytes, 67_108_864);
    assert_eq!(cli.settings(), Settings::default());
    assert_eq!(format!("{:?}", cli.host()), format!("{:?}", host::Options::default()));
    assert_eq!((cli.log.level, cli.log.format, cli.command), (Level::INFO, log::Format::Logfmt, None));
}

#[test]
fn flags_become_settings() {
    let cli = read(&[
        "--tier.size=32GiB",
        "--tier.size=1:fs=1TB",
        "--kv.bytes-per-token=36166",
        "--engine.ranks=2",
        "--correct=off",
        "--web.listen-address=:1,[::1]:2",
        "--web.listen-address=:3",
        "--path.disk-tier=/kv/a",
        "--path.disk-tier=/kv/b",
    ])
    .unwrap();
    let settings = cli.settings();
    assert_eq!(settings.tier_sizes, [("ram".into(), 34_359_738_368), ("1:fs".into(), 1_000_000_000_000)].into());
    assert_eq!(settings.bytes_per_token, Some(36_166.0));
    assert_eq!((settings.engine_ranks, settings.correct), (Some(2), false));
    assert_eq!(cli.web.listen.iter().map(Listen::to_string).collect::<Vec<_>>(), [":1", "[::1]:2", ":3"]);
    assert_eq!(cli.host().disk_tiers, [PathBuf::from("/kv/a"), PathBuf::from("/kv/b")]);
}

#[test]
fn a_disk_tier_is_looked_at_once_however_it_is_spelled() {
    let cli = read(&["--path.disk-tier=/kv/,/kv", "--path.disk-tier=/kv//a/"]).unwrap();
    let texts: Vec<_> = cli.host().disk_tiers.iter().map(|path| path.display().to_string()).collect();
    assert_eq!(texts, ["/kv", "/kv/a"]);
}

#[test]
fn collectors_are_left_out_by_name_and_the_last_word_counts() {
    let left = |flags: &[&str]| read(flags).unwrap().host.collectors.0;
    assert_eq!(left(&["--no-collector.gpu", "--no-collector.disk", "--no-collector.scan"]), ["shm", "memory"]);
    assert!(left(&["--no-collector.gpu", "--collector.gpu"]).contains(&"gpu"));
    assert!(!left(&["--collector.gpu", "--no-collector.gpu"]).contains(&"gpu"));
}

#[test]
fn extras_share_the_limits_and_get_no_credentials() {
    let flags = ["--upstream.timeout=3s", "--upstream.min-interval=1s", "--upstream.ca-file=ca.pem"];
    let secret = ["--upstream.bearer-token-file=t", "--upstream.cert-file=c", "--upstream.key-file=k"];
    let extras = ["--upstream.extra=a=h:1,b=unix:/s", "--upstream.extra=c=https://h", "--upstream.server-name=gpu-1"];
    let cli = read(&[&flags[..], &secret, &extras].concat()).unwrap();
    let (main, extras) = (cli.upstream.main(), cli.upstream.extras());
    assert!(main.secret.is_some() && main.tls.identity.is_some() && main.tls.server_name.is_some());
    assert_eq!(extras.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    for (_, options) in extras {
        assert!(options.secret.is_none() && options.tls.identity.is_none() && options.tls.server_name.is_none());
        assert_eq!((options.timeout, options.min_interval), (main.timeout, main.min_interval));
        assert_eq!(options.tls.ca_file, Some(PathBuf::from("ca.pem")));
    }
}

#[test]
fn the_demo_takes_the_flags_of_the_listener() {
    let cli = read(&["demo", "--web.listen-address", "127.0.0.1:0"]).unwrap();
    assert_eq!(cli.command, Some(Command::Demo));
    assert_eq!(cli.web.listen, [Listen { host: Some("127.0.0.1".into()), port: 0 }]);
}

#[test]
fn a_wrong_flag_is_one_line_with_a_hint() {
    for (flags, said) in [
        (&["--tier.size=32"][..], "32GiB"),
        (&["--tier.size=1GiB", "--tier.size=ram=2GiB"], "twice"),
        (&["--engine.ranks=0"], "engine.ranks"),
        (&["--kv.bytes-per-token=0"], "above 0"),
        (&["--correct=maybe"], "on or off"),
        (&["--upstream.timeout=10"], "10s"),
        (&["--upstream=gpu-1"], "host:port"),
        (&["--web.listen-adress=:1"], "--web.listen-address"),
        (&["--upstream.extra=127.0.0.1:1"], "NAME=ADDRESS"),
        (&["--upstream.extra=main=127.0.0.1:1"], "choose another"),
        (&["--upstream.extra=a=h:1", "--upstream.extra=a=h:2"], "twice"),
        (&["--upstream.min-interval=1"], "15s"),
        (&["--upstream.cert-file=c.pem"], "--upstream.key-file"),
        (&["--upstream.server-name=a b"], "host name"),
        (&["--upstream.basic-auth-file=a", "--upstream.bearer-token-file=b"], "cannot be used with"),
        (&["--log.level=loud"], "warn"),
        (&["--events=tcp://*:5557"], "the engine binds; write the engine's host, for example tcp://127.0.0.1:5557"),
        (&["--events=tcp://h:1", "--events.replay=tcp://*:5657"], "write the engine's host"),
        (&["--events=tcp://h:1", "--events.max-error=200"], "100 or less"),
        (&["--web.listen-address=*:10477"], "write :10477 to listen on every interface"),
        (&["--web.listen-address=http://127.0.0.1:29767"], "write host and port alone, 127.0.0.1:29767"),
        (&["--upstream=localhost:10477"], "--web.listen-address 127.0.0.1:10477): it would ask itself"),
        (&["--upstream=h:1", "--upstream.extra=x=127.0.0.1:10477/x"], "--upstream.extra http://127.0.0.1:10477/x is"),
        (&["demo", "--upstream.extra=x=127.0.0.1:10477"], "it would ask itself"),
        (&["--web.listen-address=[::]:8000"], "--upstream http://127.0.0.1:8000/metrics is where"),
        (&["serve"], "serve"),
    ] {
        let line = refusal(flags);
        assert!(line.contains(said), "{line}");
        assert!(!line.contains('\n') && !line.starts_with("error"), "{line}");
    }
}

#[test]
fn a_password_in_the_address_is_not_repeated() {
    for flag in ["--upstream=http://prom:s3cret@gpu-1:8000", "--upstream.extra=a=http://prom:s3cret@gpu-1:8000"] {
        let line = refusal(&[flag]);
        assert!(!line.contains("s3cret") && line.contains("--upstream.bearer-token-file"), "{line}");
    }
}

#[test]
fn every_flag_has_its_variable_and_no_help_shows_a_value() {
    let command = Cli::command().mut_args(with_variable);
    for arg in command.get_arguments() {
        let Some(long) = arg.get_long() else { panic!("{} is no flag", arg.get_id()) };
        assert_eq!(arg.get_env().and_then(|name| name.to_str()), Some(variable(long).as_str()));
        assert!(arg.is_hide_env_values_set(), "{long}");
    }
    assert_eq!(variable("upstream.max-bytes"), "KVTIER_UPSTREAM_MAX_BYTES");
}

#[test]
fn event_endpoints_are_paired_with_their_replays_in_order() {
    let options = |flags: &[&str]| read(flags).unwrap().events.options();
    assert_eq!(options(&[]), None);
    let both = options(&[
        "--events=tcp://h:5557-5558",
        "--events.bind=tcp://127.0.0.1:7",
        "--events.replay=tcp://h:5567-5568,tcp://h:8",
        "--events.topic=kv",
        "--events.max-error=5",
    ])
    .unwrap();
    let seen: Vec<_> =
        both.endpoints.iter().map(|e| (e.link.to_string(), e.replay.as_ref().unwrap().to_string())).collect();
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        seen,
        [
            pair("tcp://h:5557", "tcp://h:5567"),
            pair("tcp://h:5558", "tcp://h:5568"),
            pair("tcp://127.0.0.1:7", "tcp://h:8")
        ]
    );
    assert_eq!((both.max_error, both.max_bytes, both.window), (0.05, 64 << 20, Duration::from_secs(3600)));
    for (flags, why) in [
        (&["--events=tcp://h:1", "--events.replay=tcp://h:2", "--events.replay=tcp://h:3"][..], "2 of --events.replay"),
        (&["--events.replay=tcp://h:2"], "needs --events or --events.bind"),
        (&["--events=tcp://h:1,tcp://h:1"], "given twice"),
        (&["--events=h:1"], "does not begin with tcp://"),
    ] {
        assert!(refusal(flags).contains(why), "{}", refusal(flags));
    }
}

#[test]
fn what_is_no_listener_of_its_own_may_be_asked() {
    for flags in [
        &["check", "--upstream=127.0.0.1:10477"][..],
        &["healthcheck", "--upstream=127.0.0.1:10477"],
        &["demo", "--web.listen-address=127.0.0.1:8000"],
        &["--upstream=10.0.0.5:10477"],
        &["--events.bind=tcp://*:5557"],
    ] {
        assert!(read(flags).is_ok(), "{flags:?}: {}", refusal(flags));
    }
}
