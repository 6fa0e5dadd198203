//! The web configuration: the file of `--web.config.file`, in the format that Prometheus' own exporters share
//! (exporter-toolkit), from text to something that can only be right.
//!
//! Pure; files that it names are read elsewhere. Stricter than the toolkit wherever that would accept a line and
//! then not do what it says. Each error names line and key or user, and never repeats a value.
//!
//! To add a key: read it in `tls_section` or `http_section`; what is not read is refused by itself.

use std::path::{Path, PathBuf};

use hyper::header::{
    CONTENT_SECURITY_POLICY, HeaderName, HeaderValue, STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS, X_XSS_PROTECTION,
};
use tokio_rustls::rustls::crypto::{SupportedKxGroup, ring};
use tokio_rustls::rustls::{self, SupportedCipherSuite, SupportedProtocolVersion};

use super::section::{Located, Section};
use super::users::{Hash, HashError};
use super::yaml::{self, Fault, shown};

/// A configuration that holds nothing impossible. The files that it names may still be unreadable.
#[derive(Debug, Default)]
pub struct Config {
    /// TLS, where it is wanted.
    pub tls: Option<Tls>,
    /// Further header lines of every answer.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Who may come in: everybody where it is empty.
    pub users: Vec<(String, Hash)>,
    /// What an operator should know although it is no error.
    pub remarks: Vec<String>,
}

/// How TLS is spoken.
#[derive(Debug)]
pub struct Tls {
    /// Certificate chain, PEM.
    pub cert_file: Located<PathBuf>,
    /// Its private key, PEM.
    pub key_file: Located<PathBuf>,
    /// What is asked of clients.
    pub client_auth: ClientAuth,
    /// At least one.
    pub versions: Vec<&'static SupportedProtocolVersion>,
    /// For TLS 1.2, in the order of preference; empty is the library's choice.
    pub cipher_suites: Vec<SupportedCipherSuite>,
    /// In the order of preference; empty is the library's choice.
    pub curves: Vec<&'static dyn SupportedKxGroup>,
    /// Our order counts, not the client's.
    pub prefer_server: bool,
}

/// What is asked of clients. The verifying kinds carry the file of the authority that they verify against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientAuth {
    /// Nothing.
    None,
    /// A certificate may come, and nobody looks who signed it.
    Request,
    /// A certificate must come, and nobody looks who signed it.
    RequireAny,
    /// A certificate that comes must be signed by the authority.
    VerifyIfGiven(Located<PathBuf>),
    /// A certificate must come and be signed by the authority.
    RequireAndVerify(Located<PathBuf>),
}

/// The names of the toolkit; two of them mean the same.
const CLIENT_AUTH: [(&str, Asked); 6] = [
    ("NoClientCert", Asked::Nothing),
    ("RequestClientCert", Asked::Any),
    ("RequireClientCert", Asked::RequiredAny),
    ("RequireAnyClientCert", Asked::RequiredAny),
    ("VerifyClientCertIfGiven", Asked::Verified),
    ("RequireAndVerifyClientCert", Asked::RequiredVerified),
];
const VERSIONS: [(&str, u8); 4] = [("TLS10", 10), ("TLS11", 11), ("TLS12", OLDEST), ("TLS13", NEWEST)];
const OLDEST: u8 = 12;
const NEWEST: u8 = 13;

/// A [`ClientAuth`] whose authority is not known yet.
#[derive(Clone, Copy)]
enum Asked {
    Nothing,
    Any,
    RequiredAny,
    Verified,
    RequiredVerified,
}

/// Header names that may be configured, with the values that are allowed where they are few.
const HEADERS: [(&str, HeaderName, &[&str]); 5] = [
    ("Strict-Transport-Security", STRICT_TRANSPORT_SECURITY, &[]),
    ("X-Content-Type-Options", X_CONTENT_TYPE_OPTIONS, &["nosniff"]),
    ("X-Frame-Options", X_FRAME_OPTIONS, &["deny", "sameorigin"]),
    ("X-XSS-Protection", X_XSS_PROTECTION, &[]),
    ("Content-Security-Policy", CONTENT_SECURITY_POLICY, &[]),
];

impl Config {
    /// Reads a configuration. Relative paths in it are meant from `folder`, where the file lies.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn read(text: &str, folder: &Path) -> Result<Config, Fault> {
        let mut top = Section::root(yaml::read(text)?)?;
        let mut config = Config::default();
        if let Some(section) = top.section("tls_server_config")? {
            config.tls = tls_section(section, folder, &mut config.remarks)?;
        }
        if let Some(section) = top.section("http_server_config")? {
            config.headers = http_section(section, &mut config.remarks)?;
        }
        if let Some(section) = top.section("basic_auth_users")? {
            config.users = users_section(section)?;
        }
        top.close()?;
        if config.tls.is_none() && config.users.is_empty() {
            config.remarks.push("it asks for neither TLS nor users: everything is served to everybody".to_owned());
        }
        Ok(config)
    }
}

fn tls_section(mut section: Section, folder: &Path, remarks: &mut Vec<String>) -> Result<Option<Tls>, Fault> {
    if section.is_empty() {
        return Ok(None);
    }
    let cert_file = path(&mut section, "cert_file", folder)?;
    let key_file = path(&mut section, "key_file", folder)?;
    let client_auth = client_auth(&mut section, folder)?;
    let versions = versions(&mut section, remarks)?;
    let cipher_suites = section.list("cipher_suites")?;
    let cipher_suites = cipher_suites.iter().map(cipher_suite).collect::<Result<_, _>>()?;
    let curves = section.list("curve_preferences")?.iter().map(curve).collect::<Result<_, _>>()?;
    let prefer_server = section.flag("prefer_server_cipher_suites")?.is_none_or(|flag| flag.value);
    let line = section.line();
    section.close()?;
    let missing = |key| Fault { line, what: format!("tls_server_config.{key}: is missing, and TLS needs it") };
    Ok(Some(Tls {
        cert_file: cert_file.ok_or_else(|| missing("cert_file"))?,
        key_file: key_file.ok_or_else(|| missing("key_file"))?,
        client_auth,
        versions,
        cipher_suites,
        curves,
        prefer_server,
    }))
}

fn path(section: &mut Section, key: &'static str, folder: &Path) -> Result<Option<Located<PathBuf>>, Fault> {
    let Some(text) = section.text(key)? else { return Ok(None) };
    // The text itself must not come out again in an error about a file that is not there.
    if text.value.contains(['\n', '\0']) || text.value.starts_with("-----BEGIN") {
        return Err(text.fault("must be the name of a file, and holds something else"));
    }
    Ok(Some(text.map(|name| folder.join(name))))
}

fn client_auth(section: &mut Section, folder: &Path) -> Result<ClientAuth, Fault> {
    let authority = path(section, "client_ca_file", folder)?;
    let Some(wanted) = section.choice("client_auth_type", &CLIENT_AUTH)? else {
        return match authority {
            None => Ok(ClientAuth::None),
            Some(file) => Err(file.fault("does nothing without client_auth_type: RequireAndVerifyClientCert")),
        };
    };
    match (wanted.value, authority) {
        (Asked::Verified, Some(file)) => Ok(ClientAuth::VerifyIfGiven(file)),
        (Asked::RequiredVerified, Some(file)) => Ok(ClientAuth::RequireAndVerify(file)),
        (Asked::Verified | Asked::RequiredVerified, None) => {
            Err(wanted.fault("needs client_ca_file: without it a certificate of any public authority would do"))
        }
        (_, Some(file)) => Err(file.fault(
            "is looked at by VerifyClientCertIfGiven and RequireAndVerifyClientCert alone; make client_auth_type one of them",
        )),
        (Asked::Nothing, None) => Ok(ClientAuth::None),
        (Asked::Any, None) => Ok(ClientAuth::Request),
        (Asked::RequiredAny, None) => Ok(ClientAuth::RequireAny),
    }
}

/// A floor below what we speak is kept by speaking more; a ceiling below it cannot be.
fn versions(section: &mut Section, remarks: &mut Vec<String>) -> Result<Vec<&'static SupportedProtocolVersion>, Fault> {
    let (least, most) = (section.choice("min_version", &VERSIONS)?, section.choice("max_version", &VERSIONS)?);
    if let Some(low) = least.as_ref().filter(|version| version.value < OLDEST) {
        remarks.push(format!("line {}: {}: TLS 1.2 is the oldest version that is spoken", low.line, low.key));
    }
    let floor = least.map_or(OLDEST, |version| version.value.max(OLDEST));
    let ceiling = match most {
        None => NEWEST,
        Some(high) if high.value < OLDEST => {
            return Err(high.fault("TLS 1.2 is the oldest version that is spoken; write TLS12 or TLS13"));
        }
        Some(high) if high.value < floor => {
            return Err(high.fault("is below min_version, so that no client could connect"));
        }
        Some(high) => high.value,
    };
    let spoken = [(NEWEST, &rustls::version::TLS13), (OLDEST, &rustls::version::TLS12)];
    Ok(spoken.into_iter().filter(|(age, _)| (floor..=ceiling).contains(age)).map(|(_, version)| version).collect())
}

/// Go's names: those of the standard, also for TLS 1.3, where the TLS library writes `TLS13_`.
fn go_name(suite: &SupportedCipherSuite) -> String {
    suite.suite().as_str().unwrap_or_default().replace("TLS13_", "TLS_")
}

fn cipher_suite(name: &Located<String>) -> Result<SupportedCipherSuite, Fault> {
    let offered = ring::ALL_CIPHER_SUITES;
    offered.iter().find(|suite| go_name(suite) == name.value).copied().ok_or_else(|| {
        name.fault(&format!("must be one of {}", offered.iter().map(go_name).collect::<Vec<_>>().join(", ")))
    })
}

fn curve(name: &Located<String>) -> Result<&'static dyn SupportedKxGroup, Fault> {
    match name.value.as_str() {
        "X25519" => Ok(ring::kx_group::X25519),
        "CurveP256" => Ok(ring::kx_group::SECP256R1),
        "CurveP384" => Ok(ring::kx_group::SECP384R1),
        _ => Err(name.fault("must be one of X25519, CurveP256, CurveP384")),
    }
}

fn http_section(mut section: Section, remarks: &mut Vec<String>) -> Result<Vec<(HeaderName, HeaderValue)>, Fault> {
    if let Some(http2) = section.flag("http2")?.filter(|flag| flag.value) {
        remarks.push(format!("line {}: {}: only HTTP/1.1 is spoken, which every client takes", http2.line, http2.key));
    }
    let mut headers = Vec::new();
    if let Some(mut wanted) = section.section("headers")? {
        for (name, header, allowed) in HEADERS {
            headers.extend(header_value(&mut wanted, name, allowed)?.map(|value| (header, value)));
        }
        wanted.close()?;
    }
    section.close()?;
    Ok(headers)
}

fn header_value(section: &mut Section, name: &'static str, allowed: &[&str]) -> Result<Option<HeaderValue>, Fault> {
    let Some(text) = section.text(name)? else { return Ok(None) };
    if !allowed.is_empty() && !allowed.contains(&text.value.as_str()) {
        return Err(text.fault(&format!("must be {}", allowed.join(" or "))));
    }
    HeaderValue::from_str(&text.value).map(Some).map_err(|_| text.fault("holds bytes that no header can carry"))
}

fn users_section(section: Section) -> Result<Vec<(String, Hash)>, Fault> {
    section.texts()?.into_iter().map(|(name, text)| user(name, &text)).collect()
}

fn user(name: String, text: &Located<String>) -> Result<(String, Hash), Fault> {
    let refuse = |what: String| Fault { line: text.line, what: format!("basic_auth_users: {what}") };
    if name.contains(':') {
        return Err(refuse(format!("the name of user {:?} holds a colon, which no client can send", shown(&name))));
    }
    match Hash::parse(&text.value) {
        Ok(hash) => Ok((name, hash)),
        Err(HashError::Malformed) => Err(refuse(format!(
            "the password of user \"{}\" is not a bcrypt hash; make one with htpasswd -nBC 10 USER",
            shown(&name)
        ))),
        Err(HashError::Expensive) => Err(refuse(format!(
            "the bcrypt hash of user \"{}\" has a cost above {}: every wrong password would take seconds of CPU",
            shown(&name),
            Hash::COSTLIEST
        ))),
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
