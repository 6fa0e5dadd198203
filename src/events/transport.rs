//! A ZeroMQ socket over one TCP connection: as much of ZMTP 3 as vLLM's publisher and its replay need.
//!
//! Our own, in a few hundred lines on the standard library, instead of a crate: the `zeromq` crate brings some fifty
//! crates and three quarters of a megabyte, its `connect` waits for as long as the engine is down, and it sets no
//! limit to what a peer may send; the bindings to libzmq need a C++ build. vLLM uses plain TCP and the NULL mechanism
//! only, and so does this. Reconnecting is the reader's business.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::address::Address;
use crate::{plain, race};

/// The longest that a connection may take to be made and greeted.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest message. A batch of a prompt of a million tokens has some 5 MB.
const LARGEST: usize = 32 << 20;
/// A buffer that grew beyond this is given back.
const USUAL: usize = 1 << 20;
/// Quiet time after which the peer is asked whether it is still there, and then the longest wait for any sign.
const ASK_AFTER: Duration = Duration::from_secs(10);
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Why there is no connection any more.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It could not be made.
    #[error("cannot connect: {}", plain::io(.0))]
    Connect(std::io::Error),
    /// It broke.
    #[error("the connection broke: {}", plain::io(.0))]
    Broken(std::io::Error),
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Closed,
    /// What came is not ZMTP 3 with the NULL mechanism.
    #[error("the peer speaks something else than ZeroMQ: {0}")]
    Protocol(&'static str),
    /// A socket of another kind answered.
    #[error("the peer is a {0} socket: are the event endpoint and the replay endpoint interchanged?")]
    Kind(String),
    /// A message is larger than any batch.
    #[error("a message of {0} bytes is larger than any batch")]
    TooLarge(u64),
    /// Nothing was heard for long, although the peer used to answer.
    #[error("the peer has not been heard of for {} seconds", .0.as_secs())]
    Silent(Duration),
}

impl Fault {
    /// One word for a label.
    pub fn reason(&self) -> &'static str {
        match self {
            Fault::Connect(_) => "connect",
            Fault::Broken(_) | Fault::Closed => "closed",
            Fault::Protocol(_) | Fault::Kind(_) => "protocol",
            Fault::TooLarge(_) => "too_large",
            Fault::Silent(_) => "silent",
        }
    }
}

/// What our side of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Receives what a PUB socket publishes.
    Sub,
    /// Asks a ROUTER socket.
    Dealer,
    /// Publishes, for the demo.
    Pub,
    /// Answers a DEALER socket, for the demo.
    Router,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Sub => "SUB",
            Kind::Dealer => "DEALER",
            Kind::Pub => "PUB",
            Kind::Router => "ROUTER",
        }
    }

    fn fits(self, peer: &[u8]) -> bool {
        match self {
            Kind::Sub => matches!(peer, b"PUB" | b"XPUB"),
            Kind::Dealer => matches!(peer, b"ROUTER" | b"REP" | b"DEALER"),
            Kind::Pub => matches!(peer, b"SUB" | b"XSUB"),
            Kind::Router => matches!(peer, b"DEALER" | b"REQ" | b"ROUTER"),
        }
    }
}

/// A socket with its one connection.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    /// What was read; `start` is the first byte that is not used up.
    buffer: Vec<u8>,
    start: usize,
    heard: Instant,
    asked: Instant,
    answers: bool,
}

/// The frames of a message, where they lie in the buffer.
#[derive(Debug)]
pub struct Message<'s> {
    buffer: &'s [u8],
    frames: Vec<Range<usize>>,
}

impl<'s> Message<'s> {
    /// The frame at this place from the end, 0 being the last one.
    pub fn from_end(&self, place: usize) -> Option<&'s [u8]> {
        self.frames.iter().rev().nth(place).map(|frame| &self.buffer[frame.clone()])
    }
}

impl Socket {
    /// Connects and greets.
    ///
    /// # Errors
    /// [`Fault`], within ten seconds.
    pub fn connect(to: &Address, kind: Kind) -> Result<Socket, Fault> {
        let stream = race::connect_blocking(&to.host, to.port, PATIENCE).map_err(Fault::Connect)?;
        Socket::over(stream, kind)
    }

    /// Greets over a connection that is there.
    ///
    /// # Errors
    /// [`Fault`], within five seconds.
    pub fn over(stream: TcpStream, kind: Kind) -> Result<Socket, Fault> {
        let now = Instant::now();
        let mut socket = Socket { stream, buffer: Vec::new(), start: 0, heard: now, asked: now, answers: false };
        socket.stream.set_nonblocking(false).map_err(Fault::Broken)?;
        socket.stream.set_write_timeout(Some(PATIENCE)).map_err(Fault::Broken)?;
        socket.stream.set_nodelay(true).map_err(Fault::Broken)?;
        socket.greet(kind, now + PATIENCE)?;
        Ok(socket)
    }

    fn greet(&mut self, kind: Kind, until: Instant) -> Result<(), Fault> {
        let mut greeting = [0; 64];
        (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
        greeting[12..16].copy_from_slice(b"NULL");
        self.write(&greeting)?;
        self.fill(64, until)?;
        let peer = &self.buffer[self.start..self.start + 64];
        if peer[0] != 0xff || peer[9] & 1 == 0 || peer[10] < 3 {
            return Err(Fault::Protocol("no greeting of ZMTP 3 came"));
        }
        if &peer[12..17] != b"NULL\0" {
            return Err(Fault::Protocol("it wants a security mechanism, and vLLM has none"));
        }
        self.start += 64;
        self.write(&ready(kind))?;
        let body = loop {
            match self.frame_at(self.start)? {
                Some(frame) if frame.flags & COMMAND != 0 => {
                    self.start = frame.end;
                    break self.buffer[frame.body..frame.end].to_vec();
                }
                Some(_) => return Err(Fault::Protocol("a message came before the handshake")),
                None => self.fill(self.buffer.len() - self.start + 1, until)?,
            }
        };
        let Some(properties) = body.strip_prefix(b"\x05READY") else {
            return Err(Fault::Protocol("it refused the handshake"));
        };
        match property(properties, b"socket-type") {
            Some(peer) if kind.fits(peer) => Ok(()),
            Some(peer) => Err(Fault::Kind(String::from_utf8_lossy(&peer[..peer.len().min(16)]).into_owned())),
            None => Err(Fault::Protocol("it does not say of what type its socket is")),
        }
    }

    /// Asks for everything whose topic begins like this.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn subscribe(&mut self, topic: &str) -> Result<(), Fault> {
        self.send(&[&[&[1], topic.as_bytes()].concat()])
    }

    /// Sends a message.
    ///
    /// # Errors
    /// [`Fault`]
    pub fn send(&mut self, frames: &[&[u8]]) -> Result<(), Fault> {
        let last = frames.len().saturating_sub(1);
        let bytes: Vec<u8> =
            frames.iter().enumerate().flat_map(|(at, body)| frame(if at < last { MORE } else { 0 }, body)).collect();
        self.write(&bytes)
    }

    /// The next message; `None` if there is none within `wait`.
    ///
    /// # Errors
    /// [`Fault`]; the socket is of no use then.
    pub fn receive(&mut self, wait: Duration) -> Result<Option<Message<'_>>, Fault> {
        let until = Instant::now() + wait;
        self.make_room();
        loop {
            if let Some(frames) = self.whole_message()? {
                return Ok(Some(Message { buffer: &self.buffer, frames }));
            }
            if !self.read_some(until)? {
                self.ask_for_a_sign()?;
                return Ok(None);
            }
        }
    }

    /// Whether another message can be had without waiting.
    pub fn has_more(&self) -> bool {
        self.start < self.buffer.len()
    }

    /// Uses up the frames of the next message if all of them are there; answers commands on the way.
    fn whole_message(&mut self) -> Result<Option<Vec<Range<usize>>>, Fault> {
        let (mut at, mut frames) = (self.start, Vec::with_capacity(4));
        while let Some(frame) = self.frame_at(at)? {
            at = frame.end;
            if frame.flags & COMMAND != 0 {
                let command = self.buffer[frame.body..frame.end].to_vec();
                self.command(&command)?;
                if frames.is_empty() {
                    self.start = at;
                }
                continue;
            }
            frames.push(frame.body..frame.end);
            if frame.flags & MORE == 0 {
                self.start = at;
                return Ok(Some(frames));
            }
        }
        Ok(None)
    }

    fn command(&mut self, body: &[u8]) -> Result<(), Fault> {
        if body.starts_with(b"\x04PONG") {
            self.answers = true;
        }
        // Two bytes of time to live, then a context to be given back.
        match body.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..)) {
            Some(context) if context.len() <= 16 => {
                let pong = frame(COMMAND, &[b"\x04PONG", context].concat());
                self.write(&pong)
            }
            _ => Ok(()),
        }
    }

    fn ask_for_a_sign(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        if self.answers && now.duration_since(self.heard) > GIVE_UP_AFTER {
            return Err(Fault::Silent(GIVE_UP_AFTER));
        }
        if now.duration_since(self.heard.max(self.asked)) > ASK_AFTER {
            self.asked = now;
            return self.write(&frame(COMMAND, b"\x04PING\0\0"));
        }
        Ok(())
    }

    fn frame_at(&self, at: usize) -> Result<Option<Frame>, Fault> {
        let Some(bytes) = self.buffer.get(at..).filter(|bytes| bytes.len() >= 2) else { return Ok(None) };
        let flags = bytes[0];
        if flags & !(MORE | LONG | COMMAND) != 0 {
            return Err(Fault::Protocol("a frame has flags that ZMTP 3 does not know"));
        }
        let (head, length) = if flags & LONG == 0 {
            (2, u64::from(bytes[1]))
        } else {
            let Some(length) = bytes.get(1..9).and_then(|bytes| bytes.try_into().ok()) else { return Ok(None) };
            (9, u64::from_be_bytes(length))
        };
        let message = (at - self.start) as u64;
        if length.saturating_add(message) > LARGEST as u64 {
            return Err(Fault::TooLarge(length));
        }
        let (body, end) = (at + head, at + head + length as usize);
        Ok((end <= self.buffer.len()).then_some(Frame { flags, body, end }))
    }

    /// Moves what is left to the front, and gives a large buffer back.
    fn make_room(&mut self) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(USUAL);
            self.start = 0;
        } else if self.start > self.buffer.len() / 2 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
    }

    /// Waits until so many bytes are there.
    fn fill(&mut self, wanted: usize, until: Instant) -> Result<(), Fault> {
        while self.buffer.len() - self.start < wanted {
            if !self.read_some(until)? {
                return Err(Fault::Protocol("it accepted the connection and then said nothing"));
            }
        }
        Ok(())
    }

    /// Reads what there is; `false` if nothing came in time.
    fn read_some(&mut self, until: Instant) -> Result<bool, Fault> {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(left)).map_err(Fault::Broken)?;
        let mut chunk = [0; 64 << 10];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(Fault::Closed),
            Ok(read) => {
                self.buffer.extend_from_slice(&chunk[..read]);
                self.heard = Instant::now();
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Instant::now() < until),
            Err(error) => Err(Fault::Broken(error)),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.stream.write_all(bytes).map_err(Fault::Broken)
    }
}

struct Frame {
    flags: u8,
    body: usize,
    end: usize,
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(length) => vec![flags, length],
        Err(_) => [&[flags | LONG][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend_from_slice(body);
    bytes
}

fn ready(kind: Kind) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((kind.name().len() as u32).to_be_bytes());
    body.extend(kind.name().as_bytes());
    frame(COMMAND, &body)
}

/// The value of a property of READY; names are compared without regard to case.
fn property<'b>(mut bytes: &'b [u8], name: &[u8]) -> Option<&'b [u8]> {
    loop {
        let (length, rest) = bytes.split_first()?;
        let (found, rest) = rest.split_at_checked(usize::from(*length))?;
        let (length, rest) = rest.split_at_checked(4)?;
        let length = u32::from_be_bytes(length.try_into().ok()?);
        let (value, rest) = rest.split_at_checked(length as usize)?;
        if found.eq_ignore_ascii_case(name) {
            return Some(value);
        }
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::net::TcpListener;
    use std::thread;

    /// A connection to a peer that writes these bytes and closes.
    fn peer(bytes: Vec<u8>) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        thread::spawn(move || {
            let _ = other.write_all(&bytes);
            // What we write is read, so that the end is a close and no reset.
            let _ = other.shutdown(std::net::Shutdown::Write);
            let _ = std::io::copy(&mut other, &mut std::io::sink());
        });
        stream
    }

    /// Greeting and handshake of a PUB socket, by hand from the specification of ZMTP 3.0.
    fn hello() -> Vec<u8> {
        let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
        bytes.extend(b"NULL");
        bytes.resize(64, 0);
        bytes.extend(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB");
        bytes[65] = (bytes.len() - 66) as u8;
        bytes
    }

    fn with(rest: &[u8]) -> Socket {
        Socket::over(peer([&hello()[..], rest].concat()), Kind::Sub).unwrap()
    }

    fn wait() -> Duration {
        Duration::from_secs(5)
    }

    #[test]
    fn frames_make_messages_and_commands_are_none() {
        let mut socket = with(b"\x04\x07\x04PING\0\0\x01\x02kv\x03\0\0\0\0\0\0\0\x01x\x00\x00");
        let message = socket.receive(wait()).unwrap().unwrap();
        assert_eq!([0, 1, 2, 3].map(|at| message.from_end(at)), [Some(&b""[..]), Some(b"x"), Some(b"kv"), None]);
        assert!(matches!(socket.receive(wait()), Err(Fault::Closed)));
    }

    #[test]
    fn what_is_too_large_or_no_frame_is_a_fault_before_it_is_read() {
        let huge = [&[LONG][..], &u64::MAX.to_be_bytes()].concat();
        assert!(matches!(with(&huge).receive(wait()), Err(Fault::TooLarge(u64::MAX))));
        assert!(matches!(with(b"\x80\x00").receive(wait()), Err(Fault::Protocol(_))));
    }

    #[test]
    fn another_protocol_or_socket_is_told() {
        let fault = |bytes: &[u8]| Socket::over(peer(bytes.to_vec()), Kind::Sub).unwrap_err();
        let http = [&b"HTTP/1.1 400 Bad Request\r\n"[..], &[b' '; 64]].concat();
        assert!(matches!(fault(&http), Fault::Protocol(_)));
        let router = Socket::over(peer(hello()), Kind::Dealer).unwrap_err();
        assert!(matches!(router, Fault::Kind(kind) if kind == "PUB"));
        let mut curve = hello();
        curve[12..17].copy_from_slice(b"CURVE");
        assert!(matches!(fault(&curve), Fault::Protocol(_)));
        assert!(matches!(fault(b""), Fault::Closed));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_bytes_end_in_messages_and_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut socket = with(&bytes);
            let mut messages = 0;
            while let Ok(message) = socket.receive(wait()) {
                prop_assert!(message.is_some(), "the peer has closed, so nothing is waited for");
                messages += 1;
                prop_assert!(messages <= bytes.len());
            }
            prop_assert!(socket.buffer.capacity() < 1 << 20);
        }
    }
}
