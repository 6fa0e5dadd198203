//! Bodies for the benches, and the program itself to check them against.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use bytes::Bytes;
use kvtier_exporter::family::encode;
use kvtier_exporter::pipeline::{Format, MAIN, Source, layout, process, process_beside};
use kvtier_exporter::settings::{HostFacts, Settings};

/// The page of a capture.
pub fn capture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).join("page.prom");
    std::fs::read(path).unwrap()
}

/// A page of so many engines: the two of a capture again and again, under other numbers, each family in one piece.
pub fn engines(count: usize) -> Vec<u8> {
    let capture = String::from_utf8(capture("vllm-0.33.0-offload-cpu-dp2-full")).unwrap();
    let mut page = String::new();
    let mut family: Vec<&str> = Vec::new();
    for line in capture.lines().chain([""]) {
        if line.starts_with('#') || line.is_empty() {
            write_family(&mut page, &family, count);
            family.clear();
            page.push_str(line);
            page.push('\n');
        } else {
            family.push(line);
        }
    }
    page.truncate(page.trim_end().len() + 1);
    page.into_bytes()
}

fn write_family(page: &mut String, lines: &[&str], count: usize) {
    let of = |engine: &str| lines.iter().filter(move |line| line.contains(engine)).copied().collect::<Vec<_>>();
    let (zero, one) = (of("engine=\"0\""), of("engine=\"1\""));
    let other: Vec<_> = lines.iter().filter(|line| !line.contains("engine=\"")).copied().collect();
    page.extend(other.iter().flat_map(|line| [line, "\n"]));
    for engine in 0..count {
        let (lines, number) = if engine % 2 == 0 { (&zero, "0") } else { (&one, "1") };
        let (from, to) = (format!("engine=\"{number}\""), format!("engine=\"{engine}\""));
        lines.iter().for_each(|line| page.extend([&line.replace(&from, &to), "\n"]));
    }
}

/// A page of about so many bytes.
pub fn body(bytes: usize) -> Vec<u8> {
    let one = engines(16).len() / 16;
    engines((bytes / one).max(1))
}

/// The same with a line at its end that Prometheus would refuse the page for.
pub fn with_bad_line(body: &[u8]) -> Vec<u8> {
    [body, b"vllm:cut{engine=\"0\n"].concat()
}

/// The same page with another number in each place: what the server said a scrape before. Nothing that is done for this
/// page can be a copy of what was done for that one.
pub fn earlier(body: &[u8]) -> Vec<u8> {
    let other = |byte: u8| if byte.is_ascii_digit() { b'0' + (byte - b'0' + 7) % 10 } else { byte };
    let mut page = body.to_vec();
    for line in page.split_mut(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"#")) {
        let value = line.iter().rposition(|byte| *byte == b' ').map_or(line.len(), |blank| blank + 1);
        line[value..].iter_mut().for_each(|byte| *byte = other(*byte));
    }
    page
}

/// A page as a source of the pipeline.
pub fn source(body: &[u8]) -> Source {
    Source { name: MAIN.to_owned(), body: Bytes::copy_from_slice(body), format: Format::Text }
}

/// How many engines a page has.
pub fn count_engines(body: &[u8]) -> usize {
    process(&[source(body)], &Settings::default(), &HostFacts::default()).snapshot.engines.len()
}

/// Asserts that the program's answers to two pages in turn begin with what the pipeline makes of them, byte for byte: the
/// page and the families derived from it. Behind them come those of the box and of the program itself.
pub fn answers_alike(body: &[u8]) {
    let earlier = earlier(body);
    let (settings, host) = (Settings::default(), HostFacts { upstream_is_local: true, ..HostFacts::default() });
    let first = process(&[source(&earlier)], &settings, &host);
    let second = process_beside(&layout(&source(&earlier)), &[source(body)], &settings, &host);
    let answers = ask_the_program(vec![earlier, body.to_vec()]);
    for (answer, outcome) in answers.iter().zip([first, second]) {
        let alike = [outcome.page.concat(), encode(&outcome.families).into_bytes()].concat();
        assert!(answer.starts_with(&alike), "the program answers something else than the pipeline that is measured");
    }
}

/// What the program answers to a scrape after the other, with these pages behind it in turn.
fn ask_the_program(pages: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let scrapes = pages.len();
    let serving = thread::spawn(move || serve(&upstream, &pages));
    let mut program = Command::new(env!("CARGO_BIN_EXE_kvtier-exporter"))
        .args(["--upstream", &address.to_string(), "--web.listen-address", "127.0.0.1:0"])
        // Of the collectors this one tells the pipeline nothing.
        .arg("--collector.memory")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(program.stderr.take().unwrap()).lines().map(Result::unwrap);
    let listening = log.find(|line| line.contains("msg=listening")).unwrap();
    let own = listening.split(' ').find_map(|field| field.strip_prefix("address=")).unwrap();
    let answers = (0..scrapes).map(|_| scrape(own)).collect();
    serving.join().unwrap();
    program.kill().unwrap();
    program.wait().unwrap();
    answers
}

/// Answers each request on the first connection with the next page.
fn serve(upstream: &TcpListener, pages: &[Vec<u8>]) {
    let (mut client, _) = upstream.accept().unwrap();
    let mut head = [0; 4096];
    for page in pages {
        let _ = client.read(&mut head).unwrap();
        let length = page.len();
        let text =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {length}\r\n\r\n");
        client.write_all(&[text.as_bytes(), page].concat()).unwrap();
    }
}

fn scrape(address: &str) -> Vec<u8> {
    let mut connection = TcpStream::connect(address).unwrap();
    write!(connection, "GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    answer.split_off(head + 4)
}
