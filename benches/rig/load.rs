//! A client that keeps its connection, asks again as soon as it has the whole answer, and notes how long each took.
//!
//! It looks at the length of an answer and throws the rest away, so that what is measured is the other side.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::Place;
use super::figures::median;

/// What one `read` may take in.
const BUFFER: usize = 64 << 10;

/// One connection.
pub struct Client {
    reader: BufReader<TcpStream>,
    request: String,
}

impl Client {
    pub fn connect(place: &Place) -> io::Result<Client> {
        Client::with(place, "")
    }

    /// With further header lines, each ended.
    pub fn with(place: &Place, headers: &str) -> io::Result<Client> {
        let stream = TcpStream::connect(place.address)?;
        stream.set_nodelay(true)?;
        let request = format!("GET {} HTTP/1.1\r\nHost: bench\r\n{headers}\r\n", place.path);
        Ok(Client { reader: BufReader::with_capacity(BUFFER, stream), request })
    }

    /// Asks once. How many bytes the body has.
    pub fn scrape(&mut self) -> io::Result<usize> {
        let mut bytes = 0;
        self.scrape_into(|part| bytes += part.len())?;
        Ok(bytes)
    }

    /// Asks once and passes the body on, part by part.
    pub fn scrape_into(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        self.reader.get_mut().write_all(self.request.as_bytes())?;
        let mut length = None;
        let status = self.line()?;
        if status.split(' ').nth(1) != Some("200") {
            return Err(io::Error::other(status));
        }
        loop {
            let line = self.line()?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = Some(value.trim().parse().map_err(io::Error::other)?);
            }
        }
        match length {
            Some(length) => self.pass(length, &mut take),
            None => self.chunks(&mut take),
        }
    }

    fn chunks(&mut self, take: &mut impl FnMut(&[u8])) -> io::Result<()> {
        loop {
            let size = usize::from_str_radix(self.line()?.trim(), 16).map_err(io::Error::other)?;
            self.pass(size, take)?;
            self.line()?;
            if size == 0 {
                return Ok(());
            }
        }
    }

    fn pass(&mut self, mut left: usize, take: &mut impl FnMut(&[u8])) -> io::Result<()> {
        while left > 0 {
            let part = self.reader.fill_buf()?;
            if part.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let here = part.len().min(left);
            take(&part[..here]);
            self.reader.consume(here);
            left -= here;
        }
        Ok(())
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }
}

/// The body of one answer.
pub fn fetch(place: &Place) -> Vec<u8> {
    let mut body = Vec::new();
    Client::connect(place).unwrap().scrape_into(|part| body.extend_from_slice(part)).unwrap();
    body
}

/// Scrapes over one connection for this long. The median of the seconds that a scrape took.
pub fn turn(place: &Place, span: Duration) -> f64 {
    let (mut client, mut seconds, end) = (Client::connect(place).unwrap(), Vec::new(), Instant::now() + span);
    while Instant::now() < end {
        let began = Instant::now();
        client.scrape().unwrap();
        seconds.push(began.elapsed().as_secs_f64());
    }
    median(&seconds)
}
