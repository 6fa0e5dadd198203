//! A port at which publishers call, where the engine is the side that connects. I/O.
//!
//! Whoever calls is greeted beside whoever is followed, and gets through only once it has turned out to be a publisher: a connection
//! that says nothing, or something else, costs the one that is followed nothing.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;

use super::address::Address;
use super::transport::{Advanced, Fault, Kind, Newcomer, OVERHEAD_GREETING, Socket};

/// Connections that are greeted at a time. A further one takes the place of the oldest that has said nothing, or of the oldest:
/// ZeroMQ speaks at once and greets within milliseconds.
const GREETED: usize = 16;

/// The port.
#[derive(Debug)]
pub(super) struct Port {
    listener: TcpListener,
    greeted: VecDeque<Newcomer>,
}

impl Port {
    /// Bytes of memory that it may hold.
    pub(super) const HELD: usize = GREETED * OVERHEAD_GREETING;

    /// Listens.
    pub(super) fn open(at: &Address) -> io::Result<Port> {
        let host = if at.host.is_empty() { "0.0.0.0" } else { &at.host };
        let listener = TcpListener::bind((host, at.port))?;
        listener.set_nonblocking(true)?;
        Ok(Port { listener, greeted: VecDeque::new() })
    }

    /// Somebody is being greeted.
    pub(super) fn is_greeting(&self) -> bool {
        !self.greeted.is_empty()
    }

    /// The publisher that has called, if there is one by now; of several the last. Never waits. `failed` is told of each that is
    /// none, and where the system lets nobody in.
    pub(super) fn publisher(&mut self, mut failed: impl FnMut(Fault)) -> Option<Socket> {
        self.accept(&mut failed);
        let mut publisher = None;
        for newcomer in std::mem::take(&mut self.greeted) {
            match newcomer.advance(false) {
                Ok(Advanced::Greeted(socket)) => publisher = Some(socket),
                Ok(Advanced::NotYet(newcomer)) => self.greeted.push_back(newcomer),
                Err(fault) => failed(fault),
            }
        }
        publisher
    }

    /// Greets those who have called, as many as there is room for.
    fn accept(&mut self, failed: &mut impl FnMut(Fault)) {
        for _ in 0..GREETED {
            let greeted = match self.listener.accept() {
                Ok((stream, _)) => Newcomer::greet(stream, Kind::Sub),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // It went away before its turn.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => return failed(Fault::Connect(error)),
            };
            match greeted {
                Ok(newcomer) => self.let_in(newcomer, failed),
                Err(fault) => failed(fault),
            }
        }
    }

    fn let_in(&mut self, newcomer: Newcomer, failed: &mut impl FnMut(Fault)) {
        if self.greeted.len() == GREETED {
            let silent = self.greeted.iter().position(|other| !other.has_spoken());
            self.greeted.remove(silent.unwrap_or(0));
            failed(Fault::Crowded(GREETED));
        }
        self.greeted.push_back(newcomer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::thread;
    use std::time::{Duration, Instant};

    fn port() -> (Port, u16) {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        (Port::open(&Address { host: "127.0.0.1".to_owned(), port: free }).unwrap(), free)
    }

    /// Looks until there is a publisher; what was told of others.
    fn wait(port: &mut Port) -> (Socket, Vec<String>) {
        let (began, mut faults) = (Instant::now(), Vec::new());
        loop {
            if let Some(socket) = port.publisher(|fault| faults.push(fault.to_string())) {
                return (socket, faults);
            }
            assert!(began.elapsed() < Duration::from_secs(20), "{faults:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_publisher_gets_through_and_others_are_told() {
        let (mut port, at) = port();
        let silent = TcpStream::connect(("127.0.0.1", at)).unwrap();
        drop(TcpStream::connect(("127.0.0.1", at)).unwrap());
        let mut browser = TcpStream::connect(("127.0.0.1", at)).unwrap();
        browser.write_all(&[b'x'; 64]).unwrap();
        let publisher = thread::spawn(move || Socket::over(TcpStream::connect(("127.0.0.1", at)).unwrap(), Kind::Pub));
        let (_, faults) = wait(&mut port);
        publisher.join().unwrap().unwrap();
        assert!(faults.iter().any(|told| told.contains("no greeting of ZMTP 3")), "{faults:?}");
        assert!(faults.iter().any(|told| told.contains("closed")), "{faults:?}");
        assert!(port.is_greeting(), "the silent one has its time");
        drop(silent);
    }

    #[test]
    fn many_that_say_nothing_keep_out_nobody_and_are_bounded() {
        let (mut port, at) = port();
        let connect = || TcpStream::connect(("127.0.0.1", at)).unwrap();
        // Speaks, and waits for an answer as ZeroMQ does.
        let mut slow = connect();
        slow.write_all(&[0xff]).unwrap();
        assert!(port.publisher(|_| {}).is_none());
        let crowd: Vec<TcpStream> = (0..50).map(|_| connect()).collect();
        let mut gave_way = 0;
        while gave_way < 50 + 1 - GREETED {
            assert!(port.publisher(|fault| gave_way += usize::from(matches!(fault, Fault::Crowded(_)))).is_none());
        }
        assert_eq!(port.greeted.len(), GREETED);
        let rest = [&crate::events::handshake::greeting()[1..], &crate::events::handshake::ready(Kind::Pub)].concat();
        slow.write_all(&rest).unwrap();
        let (_, faults) = wait(&mut port);
        assert_eq!(faults, [""; 0]);
        slow.read_exact(&mut [0; 64]).unwrap();
        drop(crowd);
    }
}
