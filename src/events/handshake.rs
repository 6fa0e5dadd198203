//! How a connection begins (ZMTP 3, RFC 23, with the NULL mechanism): both sides greet, then say what they are. Pure.

use super::fault::Fault;
use super::frames::{Came, Frames, command};

/// Bytes of a greeting.
pub const GREETING: usize = 64;

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

/// What the peer's bytes have led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There is more to come.
    Waiting,
    /// It has greeted: it is to be sent [`ready`].
    Greeted,
    /// It is what fits to our side.
    Done,
}

/// The peer's side of the beginning, as it comes.
#[derive(Debug)]
pub struct Handshake {
    kind: Kind,
    greeting: [u8; GREETING],
    length: usize,
    /// No message passes before the end.
    frames: Frames,
}

impl Handshake {
    /// With a peer that has to fit to this kind.
    pub fn new(kind: Kind) -> Handshake {
        Handshake { kind, greeting: [0; GREETING], length: 0, frames: Frames::within(0) }
    }

    /// Anything has come.
    pub fn has_begun(&self) -> bool {
        self.length > 0
    }

    /// Takes bytes from the front, up to the end of a part of the handshake.
    ///
    /// # Errors
    /// [`Fault::Protocol`] or [`Fault::Kind`]; there is nothing to be had from that peer.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<Progress, Fault> {
        if self.length < GREETING {
            let (piece, rest) = bytes.split_at((GREETING - self.length).min(bytes.len()));
            self.greeting[self.length..self.length + piece.len()].copy_from_slice(piece);
            (self.length, *bytes) = (self.length + piece.len(), rest);
            if self.length < GREETING {
                return Ok(Progress::Waiting);
            }
            return self.greeted().map(|()| Progress::Greeted);
        }
        match self.frames.take(bytes) {
            Ok(None) => Ok(Progress::Waiting),
            Ok(Some(Came::Command)) => self.introduced().map(|()| Progress::Done),
            Ok(Some(Came::Message)) | Err(Fault::TooLarge { .. }) => {
                Err(Fault::Protocol("a message came before the handshake"))
            }
            Err(fault) => Err(fault),
        }
    }

    fn greeted(&self) -> Result<(), Fault> {
        let peer = &self.greeting;
        if peer[0] != 0xff || peer[9] & 1 == 0 || peer[10] < 3 {
            return Err(Fault::Protocol("no greeting of ZMTP 3 came"));
        }
        if &peer[12..17] != b"NULL\0" {
            return Err(Fault::Protocol("it wants a security mechanism, and vLLM has none"));
        }
        Ok(())
    }

    fn introduced(&self) -> Result<(), Fault> {
        let Some(properties) = self.frames.command().strip_prefix(b"\x05READY") else {
            return Err(Fault::Protocol("it refused the handshake"));
        };
        match property(properties, b"socket-type") {
            Some(peer) if self.kind.fits(peer) => Ok(()),
            Some(peer) => Err(Fault::Kind(String::from_utf8_lossy(&peer[..peer.len().min(16)]).into_owned())),
            None => Err(Fault::Protocol("it does not say of what type its socket is")),
        }
    }
}

/// What is sent first.
pub fn greeting() -> [u8; GREETING] {
    let mut greeting = [0; GREETING];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

/// What is sent once the peer has greeted.
pub fn ready(kind: Kind) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((kind.name().len() as u32).to_be_bytes());
    body.extend(kind.name().as_bytes());
    command(&body)
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

    /// Greeting and handshake of a PUB socket, by hand from the specification of ZMTP 3.0.
    fn hello() -> Vec<u8> {
        let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
        bytes.extend(b"NULL");
        bytes.resize(GREETING, 0);
        bytes.extend(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB");
        bytes
    }

    /// How far these bytes lead, and how many of them are left.
    fn led(kind: Kind, mut bytes: &[u8]) -> Result<(Progress, usize), Fault> {
        let mut handshake = Handshake::new(kind);
        loop {
            match handshake.take(&mut bytes)? {
                Progress::Greeted => {}
                end => return Ok((end, bytes.len())),
            }
        }
    }

    #[test]
    fn a_publisher_is_greeted_and_what_comes_behind_is_left() {
        let bytes = [&hello()[..], b"\x00\x01x"].concat();
        assert_eq!(led(Kind::Sub, &bytes).unwrap(), (Progress::Done, 3));
        for cut in 0..hello().len() {
            assert_eq!(led(Kind::Sub, &hello()[..cut]).unwrap(), (Progress::Waiting, 0), "{cut}");
        }
    }

    #[test]
    fn another_protocol_or_socket_is_told() {
        let fault = |bytes: &[u8]| led(Kind::Sub, bytes).unwrap_err();
        let http = [&b"HTTP/1.1 400 Bad Request\r\n"[..], &[b' '; 64]].concat();
        assert!(matches!(fault(&http), Fault::Protocol(_)));
        assert!(matches!(led(Kind::Dealer, &hello()).unwrap_err(), Fault::Kind(kind) if kind == "PUB"));
        let mut curve = hello();
        curve[12..17].copy_from_slice(b"CURVE");
        assert!(matches!(fault(&curve), Fault::Protocol(_)));
        for early in [&b"\x00\x05"[..], b"\x00\x00", b"\x02\0\0\0\0\x01\0\0\0"] {
            let told = fault(&[&hello()[..GREETING], early].concat()).to_string();
            assert!(told.contains("before the handshake"), "{told}");
        }
        assert!(fault(&[&hello()[..GREETING], b"\x04\x06\x05ERROR"].concat()).to_string().contains("refused"));
        let endless = [&hello()[..GREETING], b"\x06\0\0\0\0\x01\0\0\0"].concat();
        assert!(fault(&endless).to_string().contains("a command is larger"));
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_end_the_same_way(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            keep in 0_usize..100,
            cut in 1_usize..50,
        ) {
            let bytes = [&hello()[..keep.min(hello().len())], &bytes].concat();
            let mut handshake = Handshake::new(Kind::Sub);
            let mut end = Ok(Progress::Waiting);
            'pieces: for mut piece in bytes.chunks(cut) {
                while !piece.is_empty() {
                    end = handshake.take(&mut piece);
                    if !matches!(end, Ok(Progress::Waiting | Progress::Greeted)) {
                        break 'pieces;
                    }
                }
            }
            let whole = led(Kind::Sub, &bytes).map(|(progress, _)| progress).map_err(|fault| fault.to_string());
            let pieces = end.map_err(|fault| fault.to_string());
            prop_assert_eq!(pieces.map(|progress| if progress == Progress::Greeted { Progress::Waiting } else { progress }), whole);
        }
    }
}
