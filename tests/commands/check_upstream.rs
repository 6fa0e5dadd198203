//! `check` before an upstream that gives no page of an engine: each cause with its own remedy.

use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::bench::{Bench, Said, capture, full};
use crate::program::upstream::{Step, Upstream, ok, raw, response};

/// Texts that only those who read a library's code understand.
pub const LIBRARY: [&str; 24] = [
    "Other(",
    "OtherError",
    "CaUsedAsEndEntity",
    "InvalidContentType",
    "UnknownIssuer",
    "other(",
    "invalidcontenttype",
    "AlertReceived",
    "hyper",
    "os error",
    "at line ",
    "expected value",
    "EOF while parsing",
    "lookup address",
    "Name or service not known",
    "emporary failure in name resolution",
    "deflate",
    "invalid peer certificate",
    "KeyMismatch",
    "dlopen",
    "libloading",
    "provided:;",
    "No such file",
    "Permission denied",
];

/// Asserts status 1, a finding with this id and these words, and no library's text.
fn tells(said: &Said, id: &str, words: &[&str]) {
    said.says(1, &[&format!("FINDING {id} seen ")]).says(1, words).is_silent_about(&LIBRARY);
}

#[test]
fn each_status_has_its_remedy() {
    for (status, id, remedy) in [
        ("401 Unauthorized", "upstream-unauthorized", "Name a file that has them with --upstream.bearer-token-file"),
        ("403 Forbidden", "upstream-forbidden", "Allow this client to read the page"),
        (
            "404 Not Found",
            "upstream-wrong-endpoint",
            "Give the path of the engine's metrics with --upstream, such as http",
        ),
        ("410 Gone", "upstream-wrong-endpoint", "Give the path of the engine's metrics"),
        ("429 Too Many Requests", "upstream-rate-limited", "ask less often"),
        ("500 Internal Server Error", "upstream-failing", "its own log says at what"),
        ("501 Not Implemented", "upstream-failing", "its own log says at what"),
        ("502 Bad Gateway", "upstream-not-ready", "A proxy has no engine behind it"),
        ("503 Service Unavailable", "upstream-not-ready", "the engine is still loading"),
    ] {
        let bench = Bench::new().upstream(move |_| vec![response(status, &[], "it says \"no\"\u{1b}[2J")]);
        let code = &status[..3];
        let seen = match code {
            "401" => "needs credentials: it answered",
            "403" => "forbids it: it answered",
            _ => "metrics answered",
        };
        tells(
            &bench.check(&[]),
            id,
            &[&format!("{seen} with status {code}."), remedy, "It wrote \"it says \\\"no\\\"\\u{1b}[2J\""],
        );
    }
}

#[test]
fn what_is_no_answer_has_its_remedy() {
    let on = |step: fn() -> Vec<Step>| Bench::new().upstream(move |_| step());
    let redirect = on(|| vec![response("302 Found", &["Location: http://127.0.0.2/login"], "")]);
    tells(
        &redirect.check(&[]),
        "upstream-redirects",
        &["to another server (http://127.0.0.2", "Write the final address"],
    );
    let silent = on(|| vec![Step::Hang]);
    let said = silent.check(&["--upstream.timeout=1s"]);
    tells(&said, "upstream-timeout", &["did not answer within 1s", "more time with --upstream.timeout"]);
    let closing = on(|| vec![Step::Close]);
    // Whether it speaks TLS is tried, so that is no guess of the reader's.
    let closes = closing.check(&[]);
    tells(&closes, "upstream-closes-connection", &["closed the connection without an answer", "still up"]);
    closes.is_silent_about(&["https://"]);
    let smtp = on(|| vec![raw("220 smtp ready\r\n"), Step::Close]);
    tells(
        &smtp.check(&[]),
        "upstream-wrong-endpoint",
        &["sent what is no HTTP response.", "Something else than HTTP is spoken there"],
    );
    // A string of a protocol buffer in field 1, as the delimited form begins, however the page calls itself.
    let buffer = b"\x10\x0a\x0evllm:num_reqs_x";
    let protobuf =
        ["Content-Type: application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"];
    let said = Bench::new().upstream(move |_| vec![response("200 OK", &protobuf, buffer)]).check(&[]);
    tells(&said, "upstream-encoding", &["sent a page in Protobuf, and was asked for text.", "heed the Accept header"]);
    let said = Bench::new().upstream(move |_| vec![ok(buffer)]).check(&[]);
    tells(
        &said,
        "upstream-wrong-endpoint",
        &["sent binary data instead of metrics.", "taken its Content-Encoding header away"],
    );
    said.is_silent_about(&["text that holds no sample"]);
    // A page of text that calls itself so is read.
    let text = Bench::new().upstream(move |_| vec![response("200 OK", &protobuf, full())]);
    text.check(&[]).says(0, &["No findings"]);
    let coded = on(|| vec![response("200 OK", &["Content-Encoding: br"], "x")]);
    tells(&coded.check(&[]), "upstream-encoding", &["whole and packed with gzip"]);
    tells(&Bench::serving("").check(&[]), "upstream-wrong-endpoint", &["sent an empty page", "--enable-metrics"]);
    tells(&Bench::serving("Ollama is running").check(&[]), "upstream-wrong-endpoint", &["text that holds no sample"]);
    let large = Bench::serving(full()).check(&["--upstream.max-bytes=1KiB"]);
    tells(&large, "upstream-too-large", &["A larger body is allowed with --upstream.max-bytes"]);
    let file = Bench::serving(full()).check(&["--upstream.bearer-token-file=/nowhere/token"]);
    tells(&file, "upstream-secret-unreadable", &["the token file /nowhere/token cannot be read", "Mend the file"]);
}

#[test]
fn each_way_to_reach_nobody_has_its_remedy() {
    let bench = Bench::new();
    // RFC 2606 keeps this name free. Where no name server answers, that is what is said.
    let said = bench.at_upstream("http://no-such-host.invalid:8000/metrics", &[]);
    tells(&said, "upstream-name-unknown", &["the name no-such-host.invalid "]);
    assert!(said.flat().contains("getent hosts") || said.flat().contains("/etc/resolv.conf"), "{}", said.out);
    said.is_silent_about(&["Loading a model", "connection refused"]);
    let refused = bench.check(&[]);
    tells(&refused, "upstream-unreachable", &["connection refused", "Loading a model can take many minutes"]);

    let missing = format!("unix:{}", bench.at("none.sock").display());
    let said = bench.at_upstream(&missing, &[]);
    tells(
        &said,
        "upstream-socket-unusable",
        &["there is no socket at that path", "whether the socket's directory is mounted"],
    );
    let idle = bench.at("idle.sock");
    drop(std::os::unix::net::UnixListener::bind(&idle).unwrap());
    let said = bench.at_upstream(&format!("unix:{}", idle.display()), &[]);
    tells(&said, "upstream-socket-unusable", &["nobody listens on the socket", "stays when it ends"]);
    // Extras alike.
    let said = Bench::serving(full()).check(&[&format!("--upstream.extra=cache={missing}")]);
    tells(
        &said,
        "upstream-socket-unusable",
        &["The extra cache at unix:", "after --upstream.extra, whether the server is up"],
    );

    let bench = Bench::new().unprivileged();
    let shut = bench.at("shut.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&shut).unwrap();
    std::fs::set_permissions(&shut, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    let said = bench.at_upstream(&format!("unix:{}", shut.display()), &[]);
    tells(&said, "upstream-socket-unusable", &["permission denied on the socket", "a common group"]);
}

#[test]
fn a_page_that_is_packed_and_does_not_say_so() {
    let mut packer = GzEncoder::new(Vec::new(), Compression::default());
    packer.write_all(full().as_bytes()).unwrap();
    let packed = packer.finish().unwrap();
    let words = ["packed with gzip and no Content-Encoding header", "pass the Content-Encoding header on"];
    // With its length, and with no other end than that of the connection.
    let whole = packed.clone();
    let bench = Bench::new().upstream(move |_| vec![ok(&whole)]);
    tells(&bench.check(&[]), "upstream-packed-unsaid", &words);
    let bench = Bench::new().upstream(move |_| vec![raw("HTTP/1.0 200 OK\r\n\r\n"), raw(&packed), Step::Close]);
    tells(&bench.check(&[]), "upstream-packed-unsaid", &words);
}

#[test]
fn a_server_that_counts_nothing_of_an_engine() {
    let said = Bench::serving(include_str!("pages/python-only.prom")).check(&[]);
    tells(
        &said,
        "upstream-unknown-engine",
        &["serves 4 metric names, all of them Python's own", "--disable-log-stats"],
    );
}

#[test]
fn another_engine_and_another_server_are_named() {
    for (page, who) in [
        ("tgi_queue_size 1\ntgi_batch_current_size 2\n", "2 of them of Text Generation Inference"),
        ("llamacpp:prompt_tokens_total 5\nllamacpp:kv_cache_usage_ratio 0\n", "2 of them of llama.cpp"),
        ("trtllm_num_requests_running 5\n", "1 of them of TensorRT-LLM"),
        ("lmdeploy:num_requests_running 5\npython_info 1\n", "1 of them of LMDeploy"),
    ] {
        let said = Bench::serving(page).check(&[]);
        tells(&said, "upstream-unknown-engine", &[who, "which is another engine than those that are known here"]);
    }
    let node = Bench::serving("node_load1 0.5\n").check(&[]);
    let words =
        ["serves 1 metric name, none of an engine that is known here; they are those of node_exporter", "one exporter"];
    tells(&node, "upstream-unknown-engine", &words);
    let nobody = Bench::serving("app_up 1\n").check(&[]);
    tells(&nobody, "upstream-unknown-engine", &["serves 1 metric name, none of an engine that is known here."]);
}

/// Pages of which the engine may be recognised all the same; where it is not, the prefix is named.
#[test]
fn names_behind_a_prefix_are_told_with_the_prefix() {
    let colon = include_str!("pages/ray-prefixed-colon.prom");
    for (page, prefix) in [
        (colon.to_owned(), "ray_vllm:"),
        (include_str!("pages/ray-underscored.prom").to_owned(), "ray_vllm_"),
        (colon.replace("ray_vllm:", "kserve_vllm_"), "kserve_vllm_"),
        (colon.replace("ray_vllm:", "vllm__"), "vllm__"),
        (capture("sglang-0.5.23-hicache").replace("sglang:", "edge_sglang:"), "edge_sglang:"),
    ] {
        let said = Bench::serving(page).check(&[]);
        tells(&said, "upstream-unknown-engine", &[&format!("with the prefix {prefix}, such as {prefix}")]);
    }
}

/// A server with a certificate that `openssl` makes with these words, and the file that it lies in.
fn https(bench: &Bench, words: &[&str], script: &'static str) -> (Upstream, String) {
    let at = |name: &str| bench.at(name).display().to_string();
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=gpu-1"])
        .args(["-keyout", &at("key.pem"), "-out", &at("cert.pem")])
        .args(words)
        .output()
        .expect("openssl can be started");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let certificate = CertificateDer::from_pem_file(at("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(at("key.pem")).unwrap();
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = builder.with_single_cert(vec![certificate], key).unwrap();
    let page = if script.is_empty() { full() } else { script.to_owned() };
    (Upstream::start_tls(config, move |_| vec![ok(&page)]), at("cert.pem"))
}

#[test]
fn tls_has_a_remedy_for_each_of_its_kinds() {
    let bench = Bench::new();
    let extra = |server: &Upstream| format!("--upstream.extra=x=https://{}", server.address);
    let (server, file) = https(&bench, &["-addext", "subjectAltName=DNS:gpu-1"], "");
    let mine = |words: &[&str]| bench.at_upstream(&format!("https://{}/metrics", server.address), words);
    let untrusted = mine(&[]);
    tells(
        &untrusted,
        "upstream-certificate-untrusted",
        &["or the certificate itself if nobody else did, with --upstream.ca-file"],
    );
    let named = mine(&["--upstream.ca-file", &file]);
    tells(&named, "upstream-certificate-name", &["is for gpu-1, and not for 127.0.0.1", "--upstream.server-name"]);
    let right = mine(&["--upstream.ca-file", &file, "--upstream.server-name=gpu-1"]);
    right.says(0, &["No findings, no remarks."]);
    let unverified = mine(&["--upstream.insecure-skip-verify"]);
    unverified
        .says(0, &["remark upstream-insecure-skip-verify", "nobody looks at its certificate", "--upstream.ca-file"]);
    unverified.is_silent_about(&["insecure-skip-verify-unused"]);
    let idle = Bench::serving(full()).check(&["--upstream.insecure-skip-verify"]);
    idle.says(0, &["remark insecure-skip-verify-unused", "no upstream has an https address", "Leave the flag out."]);
    // Extras are asked under their own names.
    let said =
        Bench::serving(full()).check(&["--upstream.ca-file", &file, &extra(&server), "--upstream.server-name=gpu-1"]);
    tells(&said, "upstream-certificate-name", &["The extra x at https://", "the main upstream's alone"]);
    let plain = Upstream::start(|_| vec![ok("")]);
    let plain_port = bench.at_upstream(
        &format!("https://{}", answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
        &["--upstream.ca-file", &file],
    );
    tells(&plain_port, "upstream-wrong-scheme", &["it answers, but not in TLS", "write http:// in place of https://"]);
    let tls_port = bench.at_upstream(&format!("http://{}/metrics", server.address), &[]);
    tells(&tls_port, "upstream-wrong-scheme", &["speaks TLS, and was asked in plain HTTP", "Write https://"]);
    let go = Bench::new()
        .upstream(|_| vec![response("400 Bad Request", &[], "Client sent an HTTP request to an HTTPS server.\n")]);
    tells(&go.check(&[]), "upstream-wrong-scheme", &["Write https://"]);
    drop(plain);
    let old = bench
        .at_upstream(&format!("https://{}", answering(b"\x15\x03\x01\0\x02\x02\x46")), &["--upstream.ca-file", &file]);
    tells(&old, "upstream-tls-version", &["Let the server speak TLS 1.2 or 1.3"]);
}

/// As `openssl x509 -req` makes them where nobody gives it extensions.
#[test]
fn certificates_of_version_1_are_told_as_such() {
    let bench = Bench::new();
    let at = |name: &str| bench.at(name).display().to_string();
    let openssl = |words: &[&str]| {
        let made = Command::new("openssl").args(words).output().expect("openssl can be started");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    };
    let (request, key, certificate) = (at("request.pem"), at("key.pem"), at("cert.pem"));
    let subject = ["-newkey", "rsa:2048", "-nodes", "-subj", "/CN=gpu-1", "-keyout", &key, "-out", &request];
    openssl(&[&["req", "-new"], &subject[..]].concat());
    openssl(&["x509", "-req", "-in", &request, "-signkey", &key, "-out", &certificate]);
    let told = ["X.509 version 1", "make it version 3 (openssl x509 -req … -extfile FILE)"];
    let server = OpenSsl::start(&certificate, &key, &[]);
    let url = format!("https://{}/metrics", server.address);
    let said = bench.at_upstream(&url, &["--upstream.ca-file", &certificate, "--upstream.server-name=gpu-1"]);
    tells(&said, "upstream-certificate-unusable", &told);
    let said = bench.at_upstream(&url, &["--upstream.cert-file", &certificate, "--upstream.key-file", &key]);
    assert!(told.iter().all(|words| said.err.contains(words)), "{}", said.err);
    assert!(said.err.contains("--upstream.cert-file") && !said.err.contains("is not the key"), "{}", said.err);
    bench.write("web.yml", "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n");
    let said = bench.run(&["--web.listen-address=127.0.0.1:0", "--web.config.file", &at("web.yml")]);
    assert!(told.iter().all(|words| said.err.contains(words)), "{}", said.err);
    assert!(said.err.contains("web.yml line 2: tls_server_config.cert_file: "), "{}", said.err);
}

/// Servers on OpenSSL close without a word when they are asked in plain HTTP.
#[test]
fn a_port_that_speaks_tls_and_closes_is_told_by_a_handshake() {
    let bench = Bench::new();
    let (_, certificate) = https(&bench, &["-addext", "subjectAltName=DNS:gpu-1"], "");
    let server = OpenSsl::start(&certificate, &bench.at("key.pem").display().to_string(), &[]);
    let said = bench.at_upstream(&format!("http://{}/metrics", server.address), &[]);
    tells(&said, "upstream-wrong-scheme", &["speaks TLS, and was asked in plain HTTP", "Write https://"]);
    // One that wants a certificate of ours is one that speaks TLS, too.
    let strict = ["-Verify", "1", "-verify_return_error"];
    let server = OpenSsl::start(&certificate, &bench.at("key.pem").display().to_string(), &strict);
    let said = bench.at_upstream(&format!("http://{}/metrics", server.address), &[]);
    tells(&said, "upstream-wrong-scheme", &["speaks TLS, and was asked in plain HTTP"]);
    // A healthcheck is told its own flag.
    let said = bench.run(&["healthcheck", "--url", &format!("http://{}", server.address)]);
    assert!(said.status == 1 && said.err.contains("speaks TLS: ask with --url https://"), "{}", said.err);
}

/// Runs `openssl` in the bench's folder, word by word.
fn openssl(bench: &Bench, words: &str) {
    let made = Command::new("openssl").args(words.split(' ')).current_dir(bench.at("")).output();
    let made = made.expect("openssl can be started");
    assert!(made.status.success(), "{words}: {}", String::from_utf8_lossy(&made.stderr));
}

/// What makes a certificate in `NAME.pem` and its key in `NAME.key`: self-signed, or signed by another that was made so.
fn certificate(bench: &Bench, name: &str, key: &str, signer: Option<&str>) -> (String, String) {
    let signer = signer.map(|signer| format!(" -CA {signer}.pem -CAkey {signer}.key")).unwrap_or_default();
    let may = if name == "leaf" {
        "-addext basicConstraints=CA:FALSE -addext subjectAltName=IP:127.0.0.1"
    } else {
        "-days 30"
    };
    openssl(
        bench,
        &format!("req -x509 -newkey {key} -nodes -subj /CN={name} {may} -keyout {name}.key -out {name}.pem{signer}"),
    );
    let at = |ending: &str| bench.at(&format!("{name}.{ending}")).display().to_string();
    (at("pem"), at("key"))
}

const P256: &str = "ec -pkeyopt ec_paramgen_curve:P-256";
const P521: &str = "ec -pkeyopt ec_paramgen_curve:P-521";

#[test]
fn a_server_that_wants_a_client_certificate_is_told_so_whatever_way_it_refuses() {
    let bench = Bench::new();
    let (file, key) = certificate(&bench, "leaf", P256, None);
    let strict = ["-Verify", "1", "-verify_return_error"];
    for version in ["-tls1_2", "-tls1_3"] {
        let server = OpenSsl::start(&file, &key, &[&strict[..], &[version]].concat());
        let said = bench.at_upstream(&format!("https://{}", server.address), &["--upstream.ca-file", &file]);
        let words =
            ["asks for a client certificate.", "Give it one with --upstream.cert-file and --upstream.key-file."];
        tells(&said, "upstream-client-certificate", &words);
        let shown = format!("--upstream.cert-file={file}");
        let shown = ["--upstream.ca-file", &file, &shown, "--upstream.key-file", &key];
        // Nobody whom that server trusts signed it.
        let said = bench.at_upstream(&format!("https://{}", server.address), &shown);
        tells(&said, "upstream-client-certificate", &["refuses the client certificate that it was shown"]);
    }
    // As nginx does, by words and by its own numbers.
    for (status, title, words) in [
        (
            "400 Bad Request",
            "No required SSL certificate was sent",
            "asks for a client certificate: it answered with status",
        ),
        (
            "400 Bad Request",
            "The SSL certificate error",
            "refuses the client certificate that it was shown: it answered",
        ),
        ("496 ", "", "asks for a client certificate: it answered with status 496"),
        ("495 ", "", "refuses the client certificate that it was shown: it answered with status 495"),
    ] {
        let page = format!("<html>\r\n<head><title>400 {title}</title></head>\r\n<body>\r\n");
        let nginx = Bench::new().upstream(move |_| vec![response(status, &[], &page)]);
        tells(&nginx.check(&[]), "upstream-client-certificate", &[words, "--upstream.cert-file"]);
    }
    let nginx = Bench::new().upstream(|_| vec![response("497 ", &[], "")]);
    tells(&nginx.check(&[]), "upstream-wrong-scheme", &["Write https:// in place of http://"]);
}

#[test]
fn a_key_that_cannot_be_verified_with_is_told_by_its_kind() {
    let bench = Bench::new();
    let weak = ["-cipher", "DEFAULT@SECLEVEL=0"];
    let ask = |server: &OpenSsl, words: &[&str]| bench.at_upstream(&format!("https://{}", server.address), words);
    let remedy = "a key of RSA with 2048 to 8192 bits, of ECDSA on P-256 or P-384, or of Ed25519.";
    for (key, kind) in [(P521, "ECDSA on P-521"), ("rsa:1024", "RSA of 1024 bits")] {
        // The certificate itself is named, then an authority.
        let (file, own) = certificate(&bench, "leaf", key, None);
        let server = OpenSsl::start(&file, &own, &weak);
        let said = ask(&server, &["--upstream.ca-file", &file]);
        tells(&said, "upstream-certificate-unusable", &[&format!("cannot verify with ({kind})"), remedy]);
        // Nothing is verified then, so any key will do: what comes is HTML.
        let said = ask(&server, &["--upstream.insecure-skip-verify"]);
        tells(&said, "upstream-wrong-endpoint", &["sent HTML instead of metrics"]);
        let (authority, _) = certificate(&bench, "root", key, None);
        let (file, own) = certificate(&bench, "leaf", P256, Some("root"));
        let server = OpenSsl::start(&file, &own, &[]);
        let said = ask(&server, &["--upstream.ca-file", &authority]);
        tells(&said, "upstream-certificate-unusable", &[&format!("cannot verify with ({kind})"), remedy]);
    }
    // A refusal for another cause names no client certificate: the server asked for none.
    let (file, key) = certificate(&bench, "leaf", "rsa:2048", None);
    let server = OpenSsl::start(&file, &key, &["-tls1_2", "-cipher", "AES256-GCM-SHA384"]);
    let said = ask(&server, &["--upstream.ca-file", &file]);
    tells(
        &said,
        "upstream-tls-failed",
        &["no cipher, or no kind of certificate key, is common", "without forward secrecy"],
    );
    said.is_silent_about(&["client certificate"]);
}

#[test]
fn a_chain_with_a_gap_is_told_as_one() {
    let bench = Bench::new();
    let (root, _) = certificate(&bench, "root", P256, None);
    let (between, _) = certificate(&bench, "between", P256, Some("root"));
    let (file, key) = certificate(&bench, "leaf", P256, Some("between"));
    let ask = |server: &OpenSsl, ca: &str| {
        bench.at_upstream(&format!("https://{}", server.address), &["--upstream.ca-file", ca])
    };
    let gap = OpenSsl::start(&file, &key, &[]);
    let words =
        ["the server may leave out a certificate between the two: let it send its whole chain, or put that one into"];
    tells(&ask(&gap, &root), "upstream-certificate-untrusted", &words);
    // Both of what is said to do helps.
    let html = ["sent HTML instead of metrics"];
    tells(&ask(&OpenSsl::start(&file, &key, &["-cert_chain", &between]), &root), "upstream-wrong-endpoint", &html);
    let both = [&root, &between].map(|file| std::fs::read_to_string(file).unwrap()).concat();
    std::fs::write(bench.at("both.pem"), both).unwrap();
    tells(&ask(&gap, &bench.at("both.pem").display().to_string()), "upstream-wrong-endpoint", &html);
}

/// `openssl s_server`.
struct OpenSsl {
    address: String,
    child: std::process::Child,
}

impl OpenSsl {
    fn start(certificate: &str, key: &str, words: &[&str]) -> OpenSsl {
        let mut child = Command::new("openssl")
            .args(["s_server", "-accept", "127.0.0.1:0", "-cert", certificate, "-key", key, "-www"])
            .args(words)
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("openssl can be started");
        let said = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut lines = std::io::BufRead::lines(said).map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix("ACCEPT ").map(str::to_owned)).expect("it listens");
        // It writes on: somebody has to read.
        std::thread::spawn(move || lines.for_each(drop));
        OpenSsl { address, child }
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A server that gives this answer to whatever comes, and closes.
fn answering(answer: &'static [u8]) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let _ = stream.write_all(answer);
        }
    });
    address
}

#[test]
fn every_upstream_that_was_given_is_looked_at_and_listed() {
    let cache = Upstream::start(|_| vec![ok("lmcache_up 1\nlmcache_size 2\n")]);
    let closed = Upstream::start(|_| vec![response("401 Unauthorized", &[], "")]);
    let extras = format!("--upstream.extra=cache={},closed={}", cache.url(), closed.url());
    let said = Bench::serving(full()).check(&[&extras, "--lmcache.url=127.0.0.1:1"]);
    tells(&said, "upstream-unauthorized", &["The extra closed at http://", "Extras are sent no credentials"]);
    said.says(
        1,
        &[
            &format!("extra cache at {}: 2 metric names", cache.url()),
            &format!("extra closed at {}: no page", closed.url()),
            "LMCache's server at http://127.0.0.1:1",
        ],
    );
    Bench::new().check(&[]).says(1, &["Looked at: http://127.0.0.1:1/metrics: no page"]);
}

#[test]
fn an_extra_has_a_remedy_of_its_own() {
    let html = Upstream::start(|_| vec![ok("<!DOCTYPE html><html>")]);
    let missing = Upstream::start(|_| vec![response("404 Not Found", &[], "")]);
    for (server, id) in [(&html, "upstream-wrong-endpoint"), (&missing, "upstream-wrong-endpoint")] {
        let said = Bench::serving(full()).check(&[&format!("--upstream.extra=cache={}", server.url())]);
        tells(&said, id, &["The extra cache at http://", "Give the address of its metrics after --upstream.extra"]);
        said.is_silent_about(&["with --upstream,", "the engine's own metrics page"]);
    }
    let ray = Upstream::start(|_| vec![ok(include_str!("pages/ray-underscored.prom"))]);
    let said = Bench::serving(full()).check(&[&format!("--upstream.extra=ray={}", ray.url())]);
    tells(
        &said,
        "upstream-unknown-engine",
        &["Of the extra ray: ", "ray_vllm_ in front", "with --upstream.extra, or leave"],
    );
}

#[test]
fn an_extra_that_adds_nothing_is_told_with_what_is_on_its_page() {
    let python = Upstream::start(|_| vec![ok(include_str!("pages/python-only.prom"))]);
    let said = Bench::serving(full()).check(&[&format!("--upstream.extra=cache={}", python.url())]);
    said.says(
        0,
        &[
            "remark upstream-extra-adds-nothing",
            "serves 4 metric names, and none of them is passed on",
            &format!("extra cache at {}: 4 metric names; 4 families are left out", python.url()),
        ],
    );
    let other = Upstream::start(|_| vec![ok("lmcache_up 1\nprocess_open_fds 2\n")]);
    let said = Bench::serving(full()).check(&[&format!("--upstream.extra=cache={}", other.url())]);
    said.says(0, &[": 2 metric names; 1 family is left out, since the main page or every server has them"]);
}
