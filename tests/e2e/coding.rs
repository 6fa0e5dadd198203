//! Packed answers: who gets them, and that they are the plain ones packed. gzip itself unpacks them here.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::support::client::send;
use crate::support::exporter::Exporter;
use crate::support::upstream::{Upstream, ok};

const GAUGE: &str = "vllm:kv_offload_cpu_cache_usage_perc{engine=\"0\",model_name=\"m\"}";

/// A page of some size with a full tier, whose gauge reads 0 and has to be corrected in the midst of it.
fn page() -> String {
    let filling = |name: &str| (0..2000).map(|k| format!("{name}{{k=\"{k}\"}} 1\n")).collect::<String>();
    let tier = format!(
        "# TYPE vllm:kv_offload_cpu_cache_usage_perc gauge\n{GAUGE} 0.0\n\
         # TYPE vllm:kv_offload_store_bytes_total counter\n\
         vllm:kv_offload_store_bytes_total{{engine=\"0\",model_name=\"m\",medium=\"CPU\"}} 1e+12\n"
    );
    filling("before") + &tier + &filling("after")
}

/// Head and body as they came.
fn ask(exporter: &Exporter, method: &str, path: &str, accept: &str) -> (String, Vec<u8>) {
    let (mut stream, mut bytes) = (send(exporter.address, method, path, &[accept]), Vec::new());
    stream.read_to_end(&mut bytes).unwrap();
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let body = bytes.split_off(head + 4);
    (String::from_utf8(bytes).unwrap().to_ascii_lowercase(), body)
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn unpacked(body: &[u8]) -> String {
    let mut gzip = Command::new("gzip").arg("-dc").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, bytes) = (gzip.stdin.take().unwrap(), body.to_vec());
    let writing = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let output = gzip.wait_with_output().unwrap();
    writing.join().unwrap();
    assert!(output.status.success(), "gzip -dc: {}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// The upstream's part: ours holds figures that differ from scrape to scrape.
fn upstreams_part(body: &str) -> &str {
    &body[..body.find("# HELP kvtier_").unwrap()]
}

#[test]
fn a_packed_answer_is_the_plain_one_packed() {
    let upstream = Upstream::start(|_| vec![ok(page())]);
    let exporter = Exporter::start(&upstream.url(), &["--web.compression=on", "--tier.size=16MiB"]);
    let (head, body) = ask(&exporter, "GET", "/metrics", "Accept-Encoding: deflate, gzip;q=0.8");
    assert_eq!((header(&head, "content-encoding"), header(&head, "vary")), (Some("gzip"), Some("accept-encoding")));
    assert_eq!(header(&head, "content-length"), Some(body.len().to_string().as_str()));
    assert_eq!(header(&head, "content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let text = unpacked(&body);
    assert!(text.contains(&format!("\n{GAUGE} 1.0\n")), "{text}");
    let (_, plain) = ask(&exporter, "GET", "/metrics", "Accept-Encoding: gzip;q=0");
    assert_eq!(upstreams_part(&text), upstreams_part(&String::from_utf8(plain).unwrap()));
}

#[test]
fn who_does_not_ask_gets_plain_text_and_caches_are_told_that_it_depends() {
    let upstream = Upstream::start(|_| vec![ok(page())]);
    let exporter = Exporter::start(&upstream.url(), &["--web.compression=on"]);
    for accept in ["Accept-Encoding: gzip;q=0", "Accept-Encoding: br", "Accept: */*"] {
        let (head, body) = ask(&exporter, "GET", "/metrics", accept);
        assert_eq!((header(&head, "content-encoding"), header(&head, "vary")), (None, Some("accept-encoding")));
        assert!(body.starts_with(b"before{k=\"0\"} 1\n"));
    }
}

#[test]
fn what_is_small_is_not_packed_and_a_head_says_what_the_answer_would_be() {
    let upstream = Upstream::start(|_| vec![ok(page())]);
    let exporter = Exporter::start(&upstream.url(), &["--web.compression=on"]);
    let gzip = "Accept-Encoding: gzip";
    let (head, body) = ask(&exporter, "GET", "/-/healthy", gzip);
    assert_eq!((header(&head, "content-encoding"), body.as_slice()), (None, &b"healthy\n"[..]));
    let (head, body) = ask(&exporter, "HEAD", "/metrics", gzip);
    assert_eq!((header(&head, "content-encoding"), body.len()), (Some("gzip"), 0));
}

#[test]
fn by_default_and_when_off_nothing_is_packed_on_this_box() {
    let upstream = Upstream::start(|_| vec![ok(page())]);
    for flags in [&[][..], &["--web.compression=off"]] {
        let exporter = Exporter::start(&upstream.url(), flags);
        let (head, body) = ask(&exporter, "GET", "/metrics", "Accept-Encoding: gzip");
        assert_eq!((header(&head, "content-encoding"), header(&head, "vary")), (None, None));
        assert!(body.starts_with(b"before{k=\"0\"} 1\n"));
    }
}
