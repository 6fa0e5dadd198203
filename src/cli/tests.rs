//! Tests of the command line as a whole; those of single values stand beside their parsers.

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
    assert_eq!(cli.upstream().timeout, Duration::from_secs(10));
    assert_eq!(cli.upstream().max_bytes, 67_108_864);
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
        (&["--log.level=loud"], "warn"),
        (&["serve"], "serve"),
    ] {
        let line = refusal(flags);
        assert!(line.contains(said), "{line}");
        assert!(!line.contains('\n') && !line.starts_with("error"), "{line}");
    }
}

#[test]
fn a_password_in_the_address_is_not_repeated() {
    let line = refusal(&["--upstream=http://prom:s3cret@gpu-1:8000"]);
    assert!(!line.contains("s3cret") && line.contains("--upstream.bearer-token-file"), "{line}");
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
