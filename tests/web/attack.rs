//! Clients that guess passwords without end.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::runtime;

use crate::support::until;

/// They guess until it is dropped.
pub struct Attack {
    count: Arc<Count>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Count {
    sent: AtomicUsize,
    refused: AtomicUsize,
    over: AtomicBool,
}

impl Attack {
    /// So many clients guess the password of user `prom`, the first from the first of these addresses, and so on in turns.
    /// Returns when all of them wait.
    pub fn start(target: SocketAddr, clients: usize, addresses: &[Ipv4Addr]) -> Attack {
        let count = Arc::<Count>::default();
        let (counted, addresses) = (Arc::clone(&count), addresses.to_vec());
        let thread = std::thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                for number in 0..clients {
                    let (count, from) = (Arc::clone(&counted), addresses[number % addresses.len()]);
                    tokio::spawn(async move { guess(target, from, number, &count).await });
                }
                while !counted.over.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        });
        until("all of them wait", || count.sent.load(Ordering::Relaxed) >= clients);
        Attack { count, thread: Some(thread) }
    }

    /// How many guesses were refused so far.
    pub fn refused(&self) -> usize {
        self.count.refused.load(Ordering::Relaxed)
    }

    /// How long one hash takes now, while they guess.
    pub fn hash(&self) -> Duration {
        let (before, began) = (self.refused(), Instant::now());
        until("guesses are refused", || self.refused() >= before + 8);
        began.elapsed() / u32::try_from(self.refused() - before).unwrap()
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.count.over.store(true, Ordering::Relaxed);
        // It only ends.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

async fn guess(target: SocketAddr, from: Ipv4Addr, number: usize, count: &Count) {
    for round in 0.. {
        let password = STANDARD.encode(format!("prom:guess {number} {round}"));
        // It may be closed to make room for others.
        match ask(target, from, &password, count).await {
            Ok(answer) if answer.starts_with(b"HTTP/1.1 401 ") => drop(count.refused.fetch_add(1, Ordering::Relaxed)),
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

async fn ask(target: SocketAddr, from: Ipv4Addr, password: &str, count: &Count) -> io::Result<Vec<u8>> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((from, 0).into())?;
    let mut stream = socket.connect(target).await?;
    let request =
        format!("GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {password}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    count.sent.fetch_add(1, Ordering::Relaxed);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    Ok(answer)
}
