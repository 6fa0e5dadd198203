//! A ZeroMQ socket over one TCP connection: as much of ZMTP 3 as vLLM's publisher and its replay need.
//!
//! Our own, in a few hundred lines on the standard library, instead of a crate: the `zeromq` crate brings some fifty
//! crates and three quarters of a megabyte, its `connect` waits for as long as the engine is down, and it sets no
//! limit to what a peer may send; the bindings to libzmq need a C++ build. vLLM uses plain TCP and the NULL mechanism
//! only, and so does this. Reconnecting is the reader's business.
//!
//! What a peer can cost is bounded while it sends: bytes by [`super::frames`], time and the number of commands here.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::address::Address;
pub use super::fault::Fault;
pub use super::frames::Message;
use super::frames::{self, Came, Frames, LARGEST_COMMAND};
pub use super::handshake::Kind;
use super::handshake::{self, Handshake, Progress};
use crate::race;

/// The longest that a connection may take to be made, then to be greeted, and that a write may wait.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest that a message may be on its way: 16 MiB at 5 Mbit/s.
const ARRIVAL: Duration = Duration::from_secs(30);
/// Bytes of a message where nobody says how many. A batch of a prompt of a million tokens has some 5 MB.
const USUAL_LIMIT: usize = 16 << 20;
/// Bytes read at once, and before the peer has greeted.
const READ: usize = 64 << 10;
const READ_GREETING: usize = 512;
/// Quiet time after which the peer is asked whether it is still there, and then the longest wait for any sign.
const ASK_AFTER: Duration = Duration::from_secs(10);
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);
/// Commands that a peer may send in [`ASK_AFTER`]. ZeroMQ sends one for each of ours, and its own heartbeat where it is told to.
const COMMANDS: u32 = 100;

/// Memory of a socket beside that of its messages.
pub(super) const OVERHEAD: usize = READ + LARGEST_COMMAND;
/// The same while it is greeted.
pub(super) const OVERHEAD_GREETING: usize = READ_GREETING + LARGEST_COMMAND;

/// A socket with its one connection.
#[derive(Debug)]
pub struct Socket {
    wire: Wire,
    frames: Frames,
    heard: Instant,
    /// When the peer was asked for a sign: for the first time since it was heard, and for the last time.
    asked: Option<(Instant, Instant)>,
    answers: bool,
    /// For how long the message that is on its way was waited for.
    waited: Duration,
    /// Commands since that time.
    commands: (Instant, u32),
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
        let mut newcomer = Newcomer::greet(stream, kind)?;
        loop {
            match newcomer.advance(true)? {
                Advanced::Greeted(socket) => return Ok(socket),
                Advanced::NotYet(same) => newcomer = same,
            }
        }
    }

    /// The same socket, which holds so many bytes at most.
    #[must_use]
    pub fn within(mut self, bytes: usize) -> Socket {
        self.frames.limit(bytes.saturating_sub(OVERHEAD));
        self
    }

    /// Bytes of memory that it holds.
    pub fn held(&self) -> usize {
        OVERHEAD + self.frames.held()
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
        self.wire.write(&frames::message(frames))
    }

    /// The next message; `None` if there is none within `wait`, whatever else comes meanwhile.
    ///
    /// # Errors
    /// [`Fault`]; the socket is of no use then.
    pub fn receive(&mut self, wait: Duration) -> Result<Option<Message<'_>>, Fault> {
        let until = Instant::now() + wait;
        self.frames.forget();
        loop {
            match self.wire.take(|bytes| self.frames.take(bytes))? {
                Some(Came::Message) => {
                    self.waited = Duration::ZERO;
                    return Ok(Some(self.frames.message()));
                }
                Some(Came::Command) => self.command()?,
                None if self.read_some(until)? => {}
                None => {
                    self.ask_for_a_sign()?;
                    return Ok(None);
                }
            }
        }
    }

    /// The message that was received last.
    pub fn message(&self) -> Message<'_> {
        self.frames.message()
    }

    /// Whether another message may be had without waiting.
    pub fn has_more(&self) -> bool {
        self.wire.has_more()
    }

    /// For how long nothing has come.
    pub fn silence(&self) -> Duration {
        self.heard.elapsed()
    }

    /// Forgets the message that was received last, so that its memory is free.
    pub fn forget(&mut self) {
        self.frames.forget();
    }

    fn command(&mut self) -> Result<(), Fault> {
        let (since, count) = self.commands;
        self.commands = if since.elapsed() > ASK_AFTER { (Instant::now(), 1) } else { (since, count + 1) };
        if self.commands.1 > COMMANDS {
            return Err(Fault::Commands(COMMANDS, ASK_AFTER));
        }
        let body = self.frames.command();
        self.answers |= body.starts_with(b"\x04PONG");
        // Two bytes of time to live, then a context to be given back.
        match body.strip_prefix(b"\x04PING").and_then(|rest| rest.get(2..)) {
            Some(context) if context.len() <= 16 => {
                let pong = frames::command(&[b"\x04PONG", context].concat());
                self.wire.write(&pong)
            }
            _ => Ok(()),
        }
    }

    /// Nobody may have listened for a while, so only a question that stays without an answer tells anything.
    fn ask_for_a_sign(&mut self) -> Result<(), Fault> {
        let now = Instant::now();
        let (first, last) = self.asked.unwrap_or((now, self.heard));
        if self.answers && now.duration_since(first) > GIVE_UP_AFTER - ASK_AFTER {
            return Err(Fault::Silent(self.silence()));
        }
        if now.duration_since(last) > ASK_AFTER {
            self.asked = Some((first, now));
            return self.wire.write(&frames::command(b"\x04PING\0\0"));
        }
        Ok(())
    }

    /// Reads what there is; `false` if nothing came in time, or the time is over.
    fn read_some(&mut self, until: Instant) -> Result<bool, Fault> {
        let began = Instant::now();
        let came = self.wire.read(until)?;
        let now = Instant::now();
        if came {
            (self.heard, self.asked) = (now, None);
        }
        let waits = self.frames.is_within_message();
        self.waited = if waits { self.waited + now.duration_since(began) } else { Duration::ZERO };
        if self.waited > ARRIVAL {
            return Err(Fault::Slow(ARRIVAL));
        }
        Ok(came && now < until)
    }
}

/// How far a newcomer has come.
pub(super) enum Advanced {
    /// The peer is the right one.
    Greeted(Socket),
    /// It has not said yet what it is.
    NotYet(Newcomer),
}

/// A connection whose peer has not said yet what it is.
#[derive(Debug)]
pub(super) struct Newcomer {
    wire: Wire,
    kind: Kind,
    handshake: Handshake,
    until: Instant,
}

impl Newcomer {
    /// Greets. It is to be advanced then.
    pub(super) fn greet(stream: TcpStream, kind: Kind) -> Result<Newcomer, Fault> {
        let mut wire = Wire::over(stream)?;
        wire.write(&handshake::greeting())?;
        Ok(Newcomer { wire, kind, handshake: Handshake::new(kind), until: Instant::now() + PATIENCE })
    }

    /// Anything has come of it.
    pub(super) fn has_spoken(&self) -> bool {
        self.handshake.has_begun()
    }

    /// Takes what has come; where it is to wait, what comes.
    pub(super) fn advance(mut self, wait: bool) -> Result<Advanced, Fault> {
        loop {
            match self.wire.take(|bytes| self.handshake.take(bytes))? {
                Progress::Greeted => self.wire.write(&handshake::ready(self.kind))?,
                Progress::Done => return Ok(Advanced::Greeted(Socket::new(self.wire))),
                Progress::Waiting => {
                    // What has come in time counts, whenever it is read.
                    let came = self.wire.read(if wait { self.until } else { Instant::now() })?;
                    match came {
                        true => {}
                        false if Instant::now() >= self.until => return Err(Fault::NoGreeting(PATIENCE)),
                        false if wait => {}
                        false => return Ok(Advanced::NotYet(self)),
                    }
                }
            }
        }
    }
}

impl Socket {
    fn new(mut wire: Wire) -> Socket {
        let (frames, now) = (Frames::within(USUAL_LIMIT), Instant::now());
        wire.buffer.resize(READ, 0);
        Socket { wire, frames, heard: now, asked: None, answers: false, waited: Duration::ZERO, commands: (now, 0) }
    }
}

/// A connection, and what was read of it and is not taken yet.
#[derive(Debug)]
struct Wire {
    stream: TcpStream,
    /// A read or a write may wait.
    waits: bool,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Wire {
    fn over(stream: TcpStream) -> Result<Wire, Fault> {
        stream.set_nonblocking(false).map_err(Fault::Broken)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(Fault::Broken)?;
        stream.set_nodelay(true).map_err(Fault::Broken)?;
        Ok(Wire { stream, waits: true, buffer: vec![0; READ_GREETING], start: 0, end: 0 })
    }

    fn has_more(&self) -> bool {
        self.start < self.end
    }

    fn take<T>(&mut self, take: impl FnOnce(&mut &[u8]) -> Result<T, Fault>) -> Result<T, Fault> {
        let mut bytes = &self.buffer[self.start..self.end];
        let taken = take(&mut bytes);
        self.start = self.end - bytes.len();
        taken
    }

    /// Reads what there is, once everything before is taken; `false` if nothing came in time.
    fn read(&mut self, until: Instant) -> Result<bool, Fault> {
        let left = until.saturating_duration_since(Instant::now());
        self.may_wait(!left.is_zero())?;
        if !left.is_zero() {
            // The least that the system takes.
            self.stream.set_read_timeout(Some(left.max(Duration::from_millis(1)))).map_err(Fault::Broken)?;
        }
        let read = self.stream.read(&mut self.buffer);
        (self.start, self.end) = (0, *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(Fault::Closed),
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(false),
                _ => Err(Fault::Broken(error)),
            },
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.may_wait(true)?;
        self.stream.write_all(bytes).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Fault::Untaken(PATIENCE),
            _ => Fault::Broken(error),
        })
    }

    fn may_wait(&mut self, may: bool) -> Result<(), Fault> {
        if self.waits != may {
            self.stream.set_nonblocking(!may).map_err(Fault::Broken)?;
            self.waits = may;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Greeting and handshake of a PUB socket.
    fn hello() -> Vec<u8> {
        [&handshake::greeting()[..], &handshake::ready(Kind::Pub)].concat()
    }

    /// A connection to a peer that writes what it is told to, and closes.
    fn peer(write: impl FnOnce(&mut TcpStream) -> std::io::Result<()> + Send + 'static) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        thread::spawn(move || {
            // What it writes may not be wanted any more.
            let _ = write(&mut other);
            // What we write is read, so that the end is a close and no reset.
            let _ = other.shutdown(std::net::Shutdown::Write);
            let _ = std::io::copy(&mut other, &mut std::io::sink());
        });
        stream
    }

    fn with(rest: &[u8]) -> Socket {
        let bytes = [&hello()[..], rest].concat();
        Socket::over(peer(move |stream| stream.write_all(&bytes)), Kind::Sub).unwrap()
    }

    fn wait() -> Duration {
        Duration::from_secs(20)
    }

    #[test]
    fn messages_come_commands_are_answered_and_the_end_is_told() {
        let mut socket = with(b"\x04\x07\x04PING\0\0\x01\x02kv\x03\0\0\0\0\0\0\0\x01x\x00\x00");
        let message = socket.receive(wait()).unwrap().unwrap();
        assert_eq!([0, 1, 2, 3].map(|at| message.from_end(at)), [Some(&b""[..]), Some(b"x"), Some(b"kv"), None]);
        assert!(matches!(socket.receive(wait()), Err(Fault::Closed)));
    }

    #[test]
    fn a_message_larger_than_allowed_is_a_fault_before_it_comes() {
        let announced = [&[2][..], &1_000_000_u64.to_be_bytes()].concat();
        let mut socket = with(&announced).within(OVERHEAD + 999_999);
        assert!(matches!(socket.receive(wait()), Err(Fault::TooLarge { bytes: 1_000_000, limit: 999_999 })));
    }

    #[test]
    fn a_peer_that_sends_commands_alone_is_left() {
        let mut socket = with(&frames::command(b"\x05HELLO").repeat(101));
        assert!(matches!(socket.receive(wait()), Err(Fault::Commands(100, _))));
        let mut socket = with(&[frames::command(b"\x05HELLO").repeat(100), frames::message(&[b"x"])].concat());
        assert!(socket.receive(wait()).unwrap().is_some());
    }

    #[test]
    fn bytes_that_make_no_message_do_not_hold_the_thread() {
        let trickle = |stream: &mut TcpStream| {
            stream.write_all(&[&hello()[..], &[2], &1_000_000_u64.to_be_bytes()].concat())?;
            loop {
                stream.write_all(&[0])?;
                thread::sleep(Duration::from_millis(1));
            }
        };
        let mut socket = Socket::over(peer(trickle), Kind::Sub).unwrap();
        let began = Instant::now();
        assert!(socket.receive(Duration::from_millis(50)).unwrap().is_none());
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        // As if it had been waited for all the time.
        socket.waited = ARRIVAL;
        let told = socket.receive(wait()).unwrap_err().to_string();
        assert_eq!(told, "a message was still on its way after 30 seconds");
    }

    #[test]
    fn a_peer_that_nobody_listened_to_is_asked_before_it_is_given_up() {
        let pong = frames::command(b"\x04PONG");
        let stays = move |stream: &mut TcpStream| {
            stream.write_all(&[&hello()[..], &pong].concat())?;
            thread::sleep(wait());
            Ok(())
        };
        let mut socket = Socket::over(peer(stays), Kind::Sub).unwrap();
        let quiet =
            |socket: &mut Socket| socket.receive(Duration::from_millis(20)).map(|message| assert!(message.is_none()));
        while !socket.answers {
            quiet(&mut socket).unwrap();
        }
        assert!(socket.asked.is_none());
        // As if a replay had been read for a minute.
        let before = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        socket.heard = before(60);
        quiet(&mut socket).unwrap();
        assert!(socket.asked.is_some());
        quiet(&mut socket).unwrap();
        socket.asked = Some((before(21), before(1)));
        let told = quiet(&mut socket).unwrap_err().to_string();
        assert_eq!(told, "the peer has not been heard of for 60 seconds");
    }

    #[test]
    fn a_peer_that_takes_nothing_is_told_with_the_time_that_it_had() {
        let takes_nothing = |stream: &mut TcpStream| stream.write_all(&hello()).map(|()| thread::sleep(wait()));
        let mut socket = Socket::over(peer(takes_nothing), Kind::Sub).unwrap();
        // As if the time were over.
        socket.wire.stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
        let large = vec![0; 32 << 20];
        let told = socket.send(&[&large]).unwrap_err().to_string();
        assert_eq!(told, "the peer took nothing of what it was sent for 5 seconds");
    }

    #[test]
    fn a_peer_that_says_nothing_is_given_up_with_the_time_that_it_had() {
        let says_nothing = |_: &mut TcpStream| {
            thread::sleep(wait());
            Ok(())
        };
        let newcomer = Newcomer::greet(peer(says_nothing), Kind::Sub).unwrap();
        let Ok(Advanced::NotYet(mut newcomer)) = newcomer.advance(false) else { panic!() };
        newcomer.until = Instant::now();
        let told = newcomer.advance(true).err().unwrap().to_string();
        assert_eq!(told, "it accepted the connection and then did not greet within 5 seconds");
    }
}
