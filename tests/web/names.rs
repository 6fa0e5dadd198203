//! By which names a listener is called.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::PAGE;
use crate::support::PATIENCE;
use crate::support::exporter::{Exporter, command};
use crate::support::upstream::{Upstream, ok};

/// The status that a request with this line for its host gets.
fn status(address: SocketAddr, target: &str, version: &str, host: &str) -> u16 {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET {target} HTTP/{version}\r\n{host}Connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn host(address: SocketAddr, target: &str, name: &str) -> u16 {
    status(address, target, "1.1", &format!("Host: {name}\r\n"))
}

fn told(exporter: &Exporter) -> usize {
    exporter.log().iter().filter(|line| line.contains("--web.allowed-host")).count()
}

#[test]
fn a_listener_on_loopback_answers_to_no_name_of_a_stranger() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &["--web.allowed-host=gpu-1.example.com,other.example.com"]);
    let address = exporter.address;
    for name in
        ["127.0.0.1", "[::1]:80", "192.0.2.1:10477", "localhost", "a.b.localhost:1", "gpu-1", "GPU-1.example.com:443"]
    {
        for path in ["/metrics", "/", "/api/status", "/debug"] {
            assert_eq!(host(address, path, name), 200, "{name} {path}");
        }
    }
    assert_eq!((status(address, "/metrics", "1.0", ""), told(&exporter)), (200, 0));
    for name in ["evil.example", "evil.example:10477", "127.0.0.1.evil.example", "example.com", "evil."] {
        for path in ["/metrics", "/", "/api/status", "/debug", "/nothing"] {
            assert_eq!(host(address, path, name), 421, "{name} {path}");
        }
        for path in ["/-/healthy", "/-/ready"] {
            assert_eq!(host(address, path, name), 200, "{name} {path}");
        }
    }
    assert_eq!(host(address, "http://evil.example/metrics", "localhost"), 421);
    assert_eq!(status(address, "/metrics", "1.1", "Host: localhost\r\nHost: evil.example\r\n"), 421);
    assert_eq!(told(&exporter), 1, "{:?}", exporter.log());
}

#[test]
fn a_listener_for_others_answers_to_every_name() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::spawn(&mut command(&["--upstream", &upstream.url(), "--web.listen-address=0.0.0.0:0"]));
    let address = SocketAddr::from(([127, 0, 0, 1], exporter.address.port()));
    assert_eq!((host(address, "/metrics", "gpu-1.example.com"), told(&exporter)), (200, 0));
}

#[test]
fn a_name_that_is_none_is_refused_at_the_start() {
    for name in ["https://gpu-1.example.com", "gpu-1.example.com:10477", "a b", ""] {
        let output = crate::support::exporter::run(&[&format!("--web.allowed-host={name}")]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && stderr.contains("must be a host name"), "{name}: {stderr}");
    }
}
