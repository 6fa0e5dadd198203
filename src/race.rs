//! Which of a name's addresses is connected to (RFC 8305): the next one is tried beside those before it when they have not
//! answered within a quarter of a second, or failed. One that drops what is sent to it then costs that and no more.

use std::net::{SocketAddr, TcpStream as Blocking, ToSocketAddrs};
use std::time::Duration;
use std::{future, io};

use tokio::net::TcpStream;
use tokio::runtime;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// What an address gets before the next one is tried (RFC 8305, 5).
const HEAD_START: Duration = Duration::from_millis(250);

/// Why a name has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unresolved {
    /// Nobody knows it.
    #[error("the name {0} has no address")]
    Unknown(String),
    /// Nobody who may know it answers.
    #[error("the name {0} cannot be looked up: no name server answers")]
    NoAnswer(String),
}

/// All addresses of a name. It may block for as long as the resolver does: see [`crate::aside`].
///
/// # Errors
/// [`Unresolved`].
pub fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, Unresolved> {
    let unresolved = |error: io::Error| {
        // The standard library passes only the resolver's text on: that of glibc, and that of musl.
        let is_for_now = ["emporary failure", "ry again"].iter().any(|text| error.to_string().contains(text));
        let why = if is_for_now { Unresolved::NoAnswer } else { Unresolved::Unknown };
        why(host.to_owned())
    };
    Ok((host, port).to_socket_addrs().map_err(unresolved)?.collect())
}

/// Connects to the first that answers. The one that did the last time is tried before the others.
///
/// # Errors
/// The last one where all fail. It has no deadline: an address may never answer.
pub async fn connect(addresses: &[SocketAddr], last: Option<SocketAddr>) -> io::Result<TcpStream> {
    let mut waiting = in_turn(addresses, last).into_iter();
    let mut tries = JoinSet::new();
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    loop {
        match waiting.next() {
            Some(address) => drop(tries.spawn(TcpStream::connect(address))),
            None if tries.is_empty() => return Err(failure),
            None => {}
        }
        let next = async {
            match waiting.len() {
                0 => future::pending().await,
                _ => sleep(HEAD_START).await,
            }
        };
        tokio::select! {
            Some(tried) = tries.join_next() => match tried {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => failure = error,
                Err(broke) => failure = io::Error::other(broke),
            },
            () = next => {}
        }
    }
}

/// The same for a thread that may wait: for as long as `patience`, beside the time of the resolver.
///
/// # Errors
/// As [`connect`], an [`Unresolved`], and that nobody answered in time.
pub fn connect_blocking(host: &str, port: u16, patience: Duration) -> io::Result<Blocking> {
    let addresses = addresses(host, port).map_err(io::Error::other)?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let late = || io::Error::new(io::ErrorKind::TimedOut, "connection timed out");
    let connected = runtime.block_on(async { timeout(patience, connect(&addresses, None)).await });
    let stream = connected.unwrap_or_else(|_| Err(late()))?.into_std()?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// `last` if it is among them, then both families by turns, beginning with that of the first, each in the resolver's order
/// (RFC 8305, 4).
fn in_turn(addresses: &[SocketAddr], last: Option<SocketAddr>) -> Vec<SocketAddr> {
    let is_first = |address: &SocketAddr| addresses.first().map(SocketAddr::is_ipv4) == Some(address.is_ipv4());
    let (one, other): (Vec<_>, Vec<_>) = addresses.iter().copied().partition(is_first);
    let mut order: Vec<_> = last.filter(|last| addresses.contains(last)).into_iter().collect();
    let by_turns = (0..one.len().max(other.len())).flat_map(|at| one.get(at).into_iter().chain(other.get(at)));
    order.extend(by_turns.filter(|address| Some(**address) != last).copied());
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use tokio::net::{TcpListener, TcpSocket};

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn families_take_turns_behind_the_one_that_answered_last() {
        let all = ["[::1]:1", "[::2]:1", "[::3]:1", "192.0.2.1:1", "192.0.2.2:1"].map(at);
        let order = ["[::1]:1", "192.0.2.1:1", "[::2]:1", "192.0.2.2:1", "[::3]:1"].map(at);
        assert_eq!(in_turn(&all, None), order);
        assert_eq!(in_turn(&all, Some(at("[::9]:1"))), order, "it is no address of the name any more");
        let order = ["192.0.2.2:1", "[::1]:1", "192.0.2.1:1", "[::2]:1", "[::3]:1"].map(at);
        assert_eq!(in_turn(&all, Some(at("192.0.2.2:1"))), order);
        assert_eq!(in_turn(&all[3..], None), all[3..]);
        assert_eq!(in_turn(&[], Some(all[0])), []);
    }

    /// A listener whose queue is full: the kernel drops whatever else wants to connect, as a firewall does.
    struct Silent {
        listener: TcpListener,
        _queued: Vec<TcpStream>,
    }

    impl Silent {
        async fn listen() -> Silent {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(at("127.0.0.1:0")).unwrap();
            let listener = socket.listen(0).unwrap();
            let address = listener.local_addr().unwrap();
            let mut queued = Vec::new();
            while let Ok(stream) = timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
                queued.push(stream.unwrap());
            }
            Silent { listener, _queued: queued }
        }

        fn address(&self) -> SocketAddr {
            self.listener.local_addr().unwrap()
        }
    }

    #[tokio::test]
    async fn an_address_that_drops_everything_costs_a_quarter_of_a_second_once() {
        let (silent, other, good) =
            (Silent::listen().await, Silent::listen().await, TcpListener::bind("127.0.0.1:0").await.unwrap());
        let there = good.local_addr().unwrap();
        let all = [silent.address(), other.address(), there];
        let began = Instant::now();
        assert_eq!(connect(&all, None).await.unwrap().peer_addr().unwrap(), there);
        // Two head starts; four times that for a machine that is busy.
        assert!(began.elapsed() >= 2 * HEAD_START && began.elapsed() < 8 * HEAD_START, "{:?}", began.elapsed());
        let began = Instant::now();
        assert_eq!(connect(&all, Some(there)).await.unwrap().peer_addr().unwrap(), there);
        assert!(began.elapsed() < HEAD_START, "{:?}", began.elapsed());
    }

    #[tokio::test]
    async fn an_address_that_refuses_costs_nothing() {
        let good = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let began = Instant::now();
        assert!(connect(&[refusing, good.local_addr().unwrap()], None).await.is_ok());
        assert!(began.elapsed() < HEAD_START, "{:?}", began.elapsed());
        let refused = connect(&[refusing, refusing], None).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(connect(&[], None).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn a_thread_that_waits_gives_up_in_time() {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let refused = std::thread::spawn(move || connect_blocking("127.0.0.1", closed, Duration::from_secs(20)));
        assert_eq!(refused.join().unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let silent = Silent::listen().await;
        let port = silent.address().port();
        let began = Instant::now();
        let connected = std::thread::spawn(move || connect_blocking("127.0.0.1", port, Duration::from_millis(300)));
        assert_eq!(connected.join().unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    }
}
