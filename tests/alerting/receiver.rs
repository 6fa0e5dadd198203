//! A webhook receiver that remembers what it was told.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// One alert in a message of Alertmanager's.
#[derive(Clone, Debug)]
pub struct Notice {
    path: String,
    alert: Value,
}

impl Notice {
    pub fn label(&self, name: &str) -> &str {
        self.alert["labels"][name].as_str().unwrap_or_default()
    }

    pub fn annotation(&self, name: &str) -> &str {
        self.alert["annotations"][name].as_str().unwrap_or_default()
    }
}

/// Listens until the test's process ends.
pub struct Receiver {
    pub address: SocketAddr,
    notices: Arc<Mutex<Vec<Notice>>>,
}

impl Receiver {
    pub fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let receiver = Receiver { address: listener.local_addr().unwrap(), notices: Arc::default() };
        let notices = Arc::clone(&receiver.notices);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A message that does not arrive whole is sent again.
                let told = read(client).unwrap_or_default();
                notices.lock().unwrap().extend(told);
            }
        });
        receiver
    }

    /// The first alert of that name and status that came on that path.
    pub fn find(&self, path: &str, name: &str, status: &str) -> Option<Notice> {
        let wanted = |notice: &&Notice| {
            notice.path == path && notice.label("alertname") == name && notice.alert["status"] == status
        };
        self.notices.lock().unwrap().iter().find(wanted).cloned()
    }
}

fn read(client: TcpStream) -> std::io::Result<Vec<Notice>> {
    let mut reader = BufReader::new(client);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line)?;
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    while line.trim() != "" {
        line.clear();
        reader.read_line(&mut line)?;
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    let message: Value = serde_json::from_slice(&body)?;
    let alerts = message["alerts"].as_array().cloned().unwrap_or_default();
    Ok(alerts.into_iter().map(|alert| Notice { path: path.clone(), alert }).collect())
}
