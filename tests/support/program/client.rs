//! A client that sends one request a connection and reads the whole answer, byte for byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

use super::PATIENCE;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let (name, lines) = (format!("{name}:"), self.head.lines());
        lines.filter(|line| line.to_ascii_lowercase().starts_with(&name)).map(|line| line[name.len()..].trim()).next()
    }

    /// Whether a line of the body is exactly this.
    pub fn has(&self, line: &str) -> bool {
        self.body.lines().any(|other| other == line)
    }
}

/// GET with further header lines.
pub fn get_with(address: SocketAddr, path: &str, headers: &[&str]) -> Answer {
    receive(send(address, "GET", path, headers))
}

/// GET.
pub fn get(address: SocketAddr, path: &str) -> Answer {
    get_with(address, path, &[])
}

/// GET of something that takes longer than anything else in a test.
pub fn get_patiently(address: SocketAddr, path: &str) -> Answer {
    let stream = send(address, "GET", path, &[]);
    stream.set_read_timeout(Some(6 * PATIENCE)).unwrap();
    receive(stream)
}

/// Any method.
pub fn request(address: SocketAddr, method: &str, path: &str) -> Answer {
    receive(send(address, method, path, &[]))
}

/// GET on a thread of its own.
pub fn get_aside(address: SocketAddr, path: &'static str, headers: &'static [&'static str]) -> JoinHandle<Answer> {
    let stream = send(address, "GET", path, headers);
    std::thread::spawn(move || receive(stream))
}

/// Sends a request and leaves the answer for later.
pub fn send(address: SocketAddr, method: &str, path: &str, headers: &[&str]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: exporter\r\nConnection: close\r\n{lines}\r\n").unwrap();
    stream
}

/// Reads an answer to its end; its length must be the one that it announces.
pub fn receive(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no whole answer: {text:?}"));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap();
    let answer = Answer { status, head: head.to_owned(), body: body.to_owned() };
    let announced: usize = answer.header("content-length").expect("a Content-Length").parse().unwrap();
    assert!(body.is_empty() || body.len() == announced, "announced {announced}, sent {}", body.len());
    answer
}
