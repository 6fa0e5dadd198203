//! A name of several addresses, one of which drops whatever is sent to it, as a firewall does.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::PAGE;
use crate::support::exporter::{Exporter, command, unshared};
use crate::support::upstream::{Step, Upstream, ok};

/// A listener whose queue is full: the kernel drops what else comes. It stays so for as long as this lives.
struct Silent {
    _runtime: Runtime,
    _listener: tokio::net::TcpListener,
    _queued: Vec<TcpStream>,
}

impl Silent {
    fn at(address: SocketAddr) -> Silent {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (listener, queued) = runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(address).unwrap();
            let listener = socket.listen(0).unwrap();
            let mut queued = Vec::new();
            while let Ok(stream) = timeout(Duration::from_millis(100), TcpStream::connect(address)).await {
                queued.push(stream.unwrap());
            }
            (listener, queued)
        });
        Silent { _runtime: runtime, _listener: listener, _queued: queued }
    }
}

/// The program in a mount namespace where these names have these addresses.
pub fn with_hosts(hosts: &str, program: &Command) -> (Command, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    fs::write(&file, hosts).unwrap();
    let mut command = unshared();
    command.args(["sh", "-e", "-c", "mount --bind \"$1\" /etc/hosts\nshift\nexec \"$@\"", "sh"]).arg(&file);
    command.arg(program.get_program()).args(program.get_args()).stdin(Stdio::null());
    (command, folder)
}

#[test]
fn an_address_that_drops_everything_does_not_time_scrapes_out() {
    // Every connection is closed behind its answer, so every scrape connects.
    let listener = TcpListener::bind("127.0.0.3:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let upstream = Upstream::on_listener(listener, |_| vec![ok(PAGE), Step::Close]);
    let _silent = Silent::at(SocketAddr::new([127, 0, 0, 2].into(), port));
    // The C library gives them in this order.
    let hosts = "127.0.0.2 twofold\n127.0.0.3 twofold\n";
    let address = format!("http://twofold:{port}/metrics");
    let program = command(&["--upstream", &address, "--web.listen-address=127.0.0.1:0"]);
    let (mut program, _folder) = with_hosts(hosts, &program);
    let exporter = Exporter::spawn(&mut program);
    let scrape = || {
        let began = Instant::now();
        assert!(exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 1"));
        began.elapsed()
    };
    let first = scrape();
    assert!(first >= Duration::from_millis(250), "{first:?}: the address that says nothing was not the first");
    assert!(first < Duration::from_secs(2), "{first:?}");
    // The one that answered goes first from now on.
    let further = (0..5).map(|_| scrape()).min().unwrap();
    assert!(further < Duration::from_millis(250), "{further:?}");
    assert_eq!(upstream.connections(), 6);
}

#[test]
fn a_stream_of_events_comes_from_the_address_that_answers() {
    let listener = TcpListener::bind("127.0.0.3:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let _silent = Silent::at(SocketAddr::new([127, 0, 0, 2].into(), port));
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let events = format!("tcp://twofold:{port}");
    let program = command(&["--upstream", &upstream.url(), "--web.listen-address=127.0.0.1:0", "--events", &events]);
    let (mut program, _folder) = with_hosts("127.0.0.2 twofold\n127.0.0.3 twofold\n", &program);
    let began = Instant::now();
    let _exporter = Exporter::spawn(&mut program);
    // It knocks, which is all that is looked at here.
    listener.set_nonblocking(false).unwrap();
    let (_, from) = listener.accept().unwrap();
    assert!(from.ip().is_loopback() && began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}
