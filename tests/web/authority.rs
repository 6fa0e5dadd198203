//! A certificate authority of the test's own, and clients that trust it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion, version,
};

use crate::support::PATIENCE;
use crate::support::client::Answer;

/// Signs servers and clients.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub struct Identity {
    pub cert: String,
    pub key: String,
    chain: Vec<CertificateDer<'static>>,
    private: Vec<u8>,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub fn pem(&self) -> String {
        self.0.pem()
    }

    /// For this name or address.
    pub fn identity(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.0).unwrap();
        Identity {
            cert: certificate.pem(),
            key: key.serialize_pem(),
            chain: vec![certificate.der().clone()],
            private: key.serialize_der(),
        }
    }

    /// A client that trusts this authority.
    pub fn client(&self) -> Client<'_> {
        Client { authority: self, identity: None, versions: BOTH, provider: ring::default_provider() }
    }
}

type Versions = [&'static SupportedProtocolVersion];

/// TLS 1.2 alone.
pub static TLS12: &Versions = &[&version::TLS12];
/// TLS 1.3 alone.
pub static TLS13: &Versions = &[&version::TLS13];
/// Both.
pub static BOTH: &Versions = &[&version::TLS13, &version::TLS12];

/// How a client comes.
pub struct Client<'a> {
    authority: &'a Authority,
    pub identity: Option<&'a Identity>,
    pub versions: &'static Versions,
    pub provider: CryptoProvider,
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

impl Client<'_> {
    fn config(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.0.der().clone()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(self.provider.clone()))
            .with_protocol_versions(self.versions)
            .unwrap()
            .with_root_certificates(roots);
        match self.identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(identity.private.clone()));
                builder.with_client_auth_cert(identity.chain.clone(), key).unwrap()
            }
        }
    }

    /// A connection whose handshake is done, as far as the client can tell.
    pub fn connect(&self, address: SocketAddr) -> std::io::Result<Stream> {
        let session =
            ClientConnection::new(Arc::new(self.config()), ServerName::try_from("127.0.0.1").unwrap()).unwrap();
        let socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut stream = StreamOwned::new(session, socket);
        stream.conn.complete_io(&mut stream.sock)?;
        Ok(stream)
    }

    /// GET, or the error that the handshake ended with. In TLS 1.3 a client learns while reading that it was refused.
    pub fn get(&self, address: SocketAddr, path: &str) -> std::io::Result<Answer> {
        self.exchange(self.connect(address)?, path)
    }

    pub fn exchange(&self, mut stream: Stream, path: &str) -> std::io::Result<Answer> {
        write!(stream, "GET {path} HTTP/1.1\r\nHost: exporter\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
    }

    /// The certificate that the server shows.
    pub fn shown(&self, address: SocketAddr) -> Vec<u8> {
        self.connect(address).unwrap().conn.peer_certificates().unwrap()[0].to_vec()
    }
}

impl Identity {
    pub fn der(&self) -> &[u8] {
        &self.chain[0]
    }
}
