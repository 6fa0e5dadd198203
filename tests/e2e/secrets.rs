//! Secrets and control characters that come in somewhere: none goes out anywhere, whole or in part, however it is spelled.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use tempfile::TempDir;

use crate::PAGE;
use crate::nvml::Stub;
use crate::support::exporter::{Exporter, command, run};
use crate::support::until;
use crate::support::upstream::{Reply, Upstream, ok, response};
use crate::trust::{Authority, meaning};

/// With signs that URLs, base64 and JSON spell otherwise. No six letters of it are in a word of ours.
const TOKEN: &str = "Zk3+t9/wQ7=x~c7.Hm2vYb8&Rd5";

/// As of a host name.
const NAME: &str = "zk3t9wq7xc7hm2vyb8rd5";

/// What moves a terminal, ends a line, and turns text around.
const NASTY: &str = "a\u{1b}[2J\u{9b}31m\u{202e}b";

fn percent(text: &str, all: bool) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() && !all;
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Everything that is told of the secret where six characters of a spelling are left.
fn pieces_left<'a>(secret: &str, text: &'a str) -> Vec<&'a str> {
    let lower = text.to_ascii_lowercase();
    let spellings = [
        secret.to_owned(),
        percent(secret, false),
        percent(secret, true),
        percent(&percent(secret, false), false),
        STANDARD.encode(secret),
        // Behind one byte and behind two.
        STANDARD_NO_PAD.encode(format!(":{secret}"))[2..].to_owned(),
        STANDARD_NO_PAD.encode(format!("::{secret}"))[3..].to_owned(),
    ];
    let mut left = Vec::new();
    for spelling in spellings.map(|spelling| spelling.to_ascii_lowercase()) {
        // Each of these is ASCII.
        for at in 0..=spelling.len() - 6 {
            let piece = &spelling[at..at + 6];
            // The first two bytes of `%%25` and the like are everybody's.
            let tells = piece.matches('%').count() < 2;
            left.extend(
                lower
                    .find(piece)
                    .filter(|_| tells)
                    .map(|found| &text[found.saturating_sub(20)..(found + 26).min(text.len())]),
            );
        }
    }
    left
}

fn assert_tells_nothing(secret: &str, way: &str, text: &str) {
    let left = pieces_left(secret, text);
    assert!(left.is_empty(), "{way}: {left:?} in\n{text}");
    // Lines of ours are apart by line ends, and nothing else in them is hidden.
    let hidden = |c: &char| (c.is_control() && *c != '\n') || ('\u{202a}'..='\u{202e}').contains(c);
    assert_eq!(text.chars().find(hidden), None, "{way}: {text:?}");
}

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn flag(&self, flag: &str, name: &str, text: &str) -> String {
        fs::write(self.at(name), text).unwrap();
        format!("--{flag}={}", self.at(name).display())
    }
}

/// What a command says on both of its outputs.
fn said(words: &[&str]) -> String {
    let output = run(words);
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

/// Everything that the exporter and the commands say of an upstream, by the way out.
fn ways_out(upstream: &Upstream, flag: &str) -> Vec<(&'static str, String)> {
    let url = upstream.url();
    let mut out = Vec::new();
    for (format, name) in [("logfmt", "log"), ("json", "log as JSON")] {
        let exporter = Exporter::start(&url, &["--log.level=trace", flag, &format!("--log.format={format}")]);
        let metrics = exporter.metrics().body;
        let ours: Vec<&str> = metrics.lines().filter(|line| line.starts_with("kvtier_")).collect();
        out.push(("our own families", ours.join("\n")));
        out.push(("/debug", exporter.get("/debug").body));
        out.push(("/api/status", exporter.get("/api/status").body));
        until("the log tells of the upstream", || exporter.log().len() > 3);
        out.push((name, exporter.log().join("\n")));
    }
    let command = |words: &[&str]| said(&[&["--upstream", &url, flag, "--log.level=trace"], words].concat());
    out.push(("check", command(&["check"])));
    out.push(("check as JSON", command(&["check", "--format=json"])));
    out.push(("report", command(&["report"])));
    out.push(("report as Markdown", command(&["report", "--format=markdown"])));
    out.push(("report as JSON", command(&["report", "--format=json"])));
    out
}

/// The ways in of an upstream that repeats a secret. Each says more of it than is shown, so each is cut somewhere.
fn echoes(secret: &str) -> Vec<(&'static str, Reply)> {
    let status = |body: String| vec![response("500 Oops", &[], format!("{NASTY}\n{body}"))];
    let redirect = |to: String| vec![response("302 Found", &[&format!("Location: {to}")], "")];
    vec![
        ("a status with it", status(format!("bad token {secret}!"))),
        ("in small letters", status(secret.to_ascii_lowercase())),
        ("percent-encoded", status(percent(secret, false))),
        ("percent-encoded to the last letter", status(percent(secret, true))),
        ("percent-encoded twice", status(percent(&percent(secret, false), false))),
        ("in base64", status(STANDARD.encode(secret))),
        ("in base64 without padding", status(STANDARD_NO_PAD.encode(secret))),
        ("in base64 for URLs", status(URL_SAFE.encode(secret))),
        ("in base64 within another text", status(STANDARD.encode(format!("Authorization: Bearer {secret}\r\n")))),
        ("with a user", status(format!("user:{secret} {}", STANDARD.encode(format!("user:{secret}"))))),
        ("cut at its end", status(format!("{}…", &secret[..secret.len() - 3]))),
        ("cut at its begin", status(format!("…{}", &secret[3..]))),
        ("cut down to six", status(format!("{}… …{}", &secret[..6], &secret[secret.len() - 6..]))),
        ("cut by us", status(format!("{}{secret}", "x".repeat(180)))),
        ("in JSON", status(format!("{{\"error\":\"{}\"}}", secret.replace('/', "\\/").replace('&', "\\u0026")))),
        ("in HTML", status(format!("<b>{}</b>", secret.replace('&', "&amp;").replace('=', "&#61;")))),
        ("a refusal", vec![response("401 Unauthorized", &[], format!("no: Bearer {secret}"))]),
        ("a redirect's path", redirect(format!("http://127.0.0.9:1/{}", percent(secret, false)))),
        ("a redirect's query", redirect(format!("http://127.0.0.9:1/x?next={secret}"))),
        ("a redirect's credentials", redirect(format!("http://u:{}@127.0.0.9:1/", percent(secret, false)))),
        ("a redirect to itself", redirect(format!("/{}", percent(secret, false)))),
        ("a coding", vec![response("200 OK", &[&format!("Content-Encoding: {secret}")], PAGE)]),
        ("a type", vec![response("200 OK", &[&format!("Content-Type: {secret}")], format!("<html>{secret}"))]),
        ("a bad line", vec![ok(format!("{PAGE}bad {secret} {NASTY} line\n"))]),
        ("a bad line that is long", vec![ok(format!("{PAGE}bad{} {secret} line\n", "x".repeat(180)))]),
        ("a bad value", vec![ok(format!("{PAGE}x_total {secret}\n"))]),
        ("labels", vec![ok(labelled(secret))]),
    ]
}

/// A page of an engine whose labels hold it: of whom, and of a direction that nobody knows.
fn labelled(secret: &str) -> String {
    let label = format!("engine=\"0\",model_name=\"{secret}\u{202e}\\n\"");
    format!(
        "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{{label}}} 1\n\
         # TYPE vllm:kv_offload_total_bytes_total counter\n\
         vllm:kv_offload_total_bytes_total{{{label},transfer_type=\"GPU_to_{secret}\"}} 5\n"
    )
}

#[test]
fn a_token_goes_out_nowhere_however_it_comes_in() {
    for (way, reply) in echoes(TOKEN) {
        let upstream = Upstream::start(move |_| reply.clone());
        let files = Files::new();
        let flag = files.flag("upstream.bearer-token-file", "token", TOKEN);
        let out = ways_out(&upstream, &flag);
        // Labels of our families that name a model are the upstream's own values.
        let shown = out.iter().filter(|(to, _)| way != "labels" || *to != "our own families");
        for (to, text) in shown {
            assert_tells_nothing(TOKEN, &format!("{way} to {to}"), text);
        }
        assert!(upstream.requests()[0].head.contains(TOKEN), "it was sent");
    }
}

#[test]
fn a_password_goes_out_nowhere_and_its_user_may() {
    for (way, reply) in echoes(TOKEN) {
        let upstream = Upstream::start(move |_| reply.clone());
        let files = Files::new();
        let flag = files.flag("upstream.basic-auth-file", "login", &format!("user:{TOKEN}"));
        let exporter = Exporter::start(&upstream.url(), &[&flag]);
        exporter.metrics();
        let debug = exporter.get("/debug").body;
        assert_tells_nothing(TOKEN, way, &debug);
        assert!(way != "with a user" || debug.contains("user:***"), "{debug}");
    }
}

#[test]
fn a_token_in_the_name_of_a_host_is_blanked() {
    let files = Files::new();
    // Names are lower-cased on their way, and the token is not.
    let token = NAME.to_ascii_uppercase();
    let flag = files.flag("upstream.bearer-token-file", "token", &token);
    let location = format!("Location: http://{token}.example/x");
    let upstream = Upstream::start(move |_| vec![response("302 Found", &[&location], "")]);
    for (to, text) in ways_out(&upstream, &flag) {
        assert_tells_nothing(NAME, to, &text);
    }
    let authority = Authority::new();
    let upstream = Upstream::start_tls(authority.server(&format!("{NAME}.example")), |_| vec![ok(PAGE)]);
    let ca = format!("--upstream.ca-file={}", authority.file().display());
    let meaning = meaning(&upstream, &[ca, flag.clone()]);
    assert!(meaning.contains("its certificate is for ***.example"), "{meaning}");
}

#[test]
fn names_in_a_certificate_move_no_terminal() {
    let authority = Authority::new();
    let upstream = Upstream::start_tls(authority.server("gpu\u{1b}[2J\nstate    up"), |_| vec![ok(PAGE)]);
    let said = meaning(&upstream, &[format!("--upstream.ca-file={}", authority.file().display())]);
    assert!(said.contains("its certificate is for gpu\\u{1b}[2J\\nstate    up, and not"), "{said}");
}

#[test]
fn a_token_of_before_a_rotation_is_blanked_too() {
    let old = "Kq8-nV4_bT6-jX2_pL9";
    let files = Files::new();
    let flag = files.flag("upstream.bearer-token-file", "token", old);
    let upstream = Upstream::start(move |request| {
        let now = if request.number == 1 { "" } else { TOKEN };
        vec![response("401 No", &[], format!("{old} is not {now}"))]
    });
    let exporter = Exporter::start(&upstream.url(), &[&flag]);
    exporter.metrics();
    fs::write(files.at("token"), TOKEN).unwrap();
    exporter.metrics();
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("it wrote \"*** is not ***\""), "{debug}");
    for text in [debug, exporter.get("/api/status").body, exporter.log().join("\n")] {
        assert_tells_nothing(TOKEN, "the new one", &text);
        assert_tells_nothing(old, "the old one", &text);
    }
}

#[test]
fn a_short_secret_is_warned_of_at_the_start() {
    let files = Files::new();
    let bearer = files.flag("upstream.bearer-token-file", "token", "7signs!");
    let basic = files.flag("upstream.basic-auth-file", "login", "a-long-name:7signs!");
    let long = files.flag("upstream.bearer-token-file", "long", "8signs!!");
    let warned = |flag: &str| {
        let exporter = Exporter::start("127.0.0.1:1", &[flag]);
        let log = exporter.log().join("\n");
        assert!(!log.contains("signs!"), "{log}");
        log.contains("level=warn") && log.contains("fewer than 8 characters")
    };
    assert_eq!((warned(&bearer), warned(&basic), warned(&long)), (true, true, false));
}

#[test]
fn a_key_in_the_query_of_the_address_is_blanked() {
    let upstream = Upstream::start(|request| vec![response("404 Not Found", &[], format!("no {} here", request.path))]);
    let url = format!("{}?format=prometheus&api_key={}", upstream.url(), percent(TOKEN, false));
    let exporter = Exporter::start(&url, &[]);
    exporter.metrics();
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("it wrote \"no /metrics?*** here\""), "{debug}");
    assert_tells_nothing(TOKEN, "/debug", &debug);
}

#[test]
fn credentials_on_the_command_line_are_not_repeated() {
    let url = format!("user:{NAME}@host");
    for words in [
        &[&format!("--events=tcp://{url}:1")[..]][..],
        &[&format!("--events.bind=tcp://{url}:1")],
        &["--events=tcp://h:1", &format!("--events.replay=tcp://{url}:1")],
        &[&format!("--events=tcp://user:{NAME}/x@host:1")],
        &[&format!("--upstream=http://{url}:1")],
        &[&format!("--upstream.extra=a=http://{url}:1")],
        &["healthcheck", &format!("--url=http://{url}:1")],
        &["check", &format!("--lmcache.url=http://{url}:1")],
        &["report", "--window=-1h..now", &format!("--prometheus=http://{url}:1")],
        &[&format!("--web.listen-address=http://{url}:1")],
        &[&format!("http://{url}:1")],
    ] {
        let said = said(words);
        assert_tells_nothing(NAME, &words.join(" "), &said);
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let said = said(&[&format!("--events=tcp://{url}:1")]);
    assert!(said.contains("--events holds a user or a password"), "{said}");
}

#[test]
fn what_a_prometheus_and_an_lmcache_answer_is_printed_without_secrets() {
    let files = Files::new();
    let token = files.flag("prometheus.bearer-token-file", "token", TOKEN);
    let error = serde_json::json!({"status": "error", "error": format!("{TOKEN}: parse error\n{NASTY}")}).to_string();
    for (status, body) in
        [("400 Bad Request", error.clone()), ("200 OK", error), ("500 Oops", format!("{TOKEN}{NASTY}\n"))]
    {
        let prometheus = Upstream::start(move |_| vec![response(status, &[], &body)]);
        let url = format!("--prometheus=http://{}", prometheus.address);
        let said = said(&["report", &url, "--window=-1h..now", &token]);
        assert_tells_nothing(TOKEN, status, &said);
        assert!(said.contains("***") && said.lines().count() == 1, "{said}");
    }
    let page = Upstream::start(|_| vec![ok(PAGE)]);
    let location = format!("Location: http://127.0.0.9:1/{}", percent(TOKEN, false));
    let lmcache = Upstream::start(move |_| vec![response("302 Found", &[&location], "")]);
    let bearer = files.flag("upstream.bearer-token-file", "token", TOKEN);
    let url = format!("--lmcache.url=http://{}", lmcache.address);
    let said = said(&["check", "--upstream", &page.url(), &bearer, &url]);
    assert!(said.contains("redirects to another server (http://127.0.0.9:1/***)"), "{said}");
    assert_tells_nothing(TOKEN, "check", &said);
}

/// Says of a ZeroMQ socket that it is of this type (ZMTP 3.0), to whoever comes.
fn peer_of_type(kind: &str) -> SocketAddr {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    let length = u32::try_from(kind.len()).unwrap().to_be_bytes();
    let ready = [b"\x05READY\x0bSocket-Type", &length[..], kind.as_bytes()].concat();
    let bytes = [&greeting[..], &[4, u8::try_from(ready.len()).unwrap()], &ready].concat();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            // Who has heard enough may be gone.
            drop(stream.write_all(&bytes).and_then(|()| stream.read_exact(&mut [0; 64])));
        }
    });
    address
}

#[test]
fn what_a_stream_of_events_says_of_itself_passes_too() {
    let files = Files::new();
    let flag = files.flag("upstream.bearer-token-file", "token", TOKEN);
    let events = format!("--events=tcp://{}", peer_of_type(&format!("\u{1b}[2J\u{202e}{}", &TOKEN[..9])));
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[&flag, &events]);
    until("the stream is refused", || {
        exporter.metrics();
        exporter.get("/debug").body.contains("\\u{1b}[2J\\u{202e}***")
    });
    let said = said(&["check", "--upstream", &upstream.url(), &flag, &events]);
    assert!(said.contains("\\u{1b}[2J\\u{202e}***"), "{said}");
    let (debug, status) = (exporter.get("/debug").body, exporter.get("/api/status").body);
    for (way, text) in [("/debug", debug), ("/api/status", status), ("log", exporter.log().join("\n")), ("check", said)]
    {
        assert_tells_nothing(TOKEN, way, &text);
    }
}

/// Collectors tell of files and devices by their names, and those are anybody's.
#[test]
fn names_of_files_and_devices_move_no_terminal_and_make_no_line() {
    let files = Files::new();
    let script = format!(
        "driver 580.95.05\ncount 1\ngpu0.uuid GPU-aaaa\ngpu0.name RTX {NASTY}\n\
         gpu0.memory 34190917632 32043433984 2147483648 0\n"
    );
    fs::create_dir(files.at("driver")).unwrap();
    let driver = Stub::build(&files.at("driver"), &[], &script);
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let tier = files.at(&format!("kv{NASTY}\nupstream main\n  state    down"));
    let mut program =
        command(&["--upstream", &upstream.url(), "--web.listen-address=127.0.0.1:0", "--log.level=trace"]);
    program.args(["--collector.disk", "--collector.gpu"]).arg("--path.disk-tier").arg(&tier);
    program.arg("--nvml.library").arg(driver.library());
    let exporter = Exporter::spawn(&mut program);
    until("the collectors have looked", || {
        exporter.metrics();
        let debug = exporter.get("/debug").body;
        debug.contains("collector disk\n  state    failed") || debug.contains("kva\\u{1b}")
    });
    let (debug, status) = (exporter.get("/debug").body, exporter.get("/api/status").body);
    for (way, text) in [("/debug", &debug), ("/api/status", &status), ("log", &exporter.log().join("\n"))] {
        assert_tells_nothing(TOKEN, way, text);
    }
    assert_eq!(debug.lines().filter(|line| *line == "upstream main").count(), 1, "{debug}");
    let mut check = command(&["--collector.gpu", "--upstream", &upstream.url(), "check", "--path.disk-tier"]);
    let output = check.arg(&tier).arg("--nvml.library").arg(driver.library()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("RTX a\\u{1b}[2J\\u{9b}31m\\u{202e}b"), "{said}");
    assert_tells_nothing(TOKEN, "check", &said);
    assert!(!said.lines().any(|line| line == "upstream main"), "{said}");
}
