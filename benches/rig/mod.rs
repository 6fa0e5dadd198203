//! What the benches of whole scrapes stand on: programs as processes, a client that measures, and the reference
//! programs. Everything listens on loopback and is ended by its handle.
#![allow(dead_code, unreachable_pub, reason = "each bench uses another part")]

pub mod figures;
pub mod load;
pub mod program;
pub mod reference;
pub mod wrk;

use std::net::{SocketAddr, TcpListener};

/// Where something is scraped.
#[derive(Clone, Debug)]
pub struct Place {
    pub address: SocketAddr,
    pub path: String,
}

impl Place {
    pub fn new(address: SocketAddr, path: &str) -> Place {
        Place { address, path: path.to_owned() }
    }

    pub fn url(&self) -> String {
        format!("http://{}{}", self.address, self.path)
    }
}

/// A port of the loopback that nobody listens on.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
