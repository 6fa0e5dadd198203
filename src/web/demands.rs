//! What a configuration asks of whoever comes, as far as a reload may not ask for less. Pure.

use tokio_rustls::rustls::ProtocolVersion;

use super::config::{ClientAuth, Config, Tls};

/// The demands, each of which may come and never go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demands {
    tls: bool,
    /// TLS 1.3, and nothing older.
    newest_only: bool,
    certificate: Certificate,
    users: bool,
}

/// What is asked of a client's certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Certificate {
    asked: bool,
    required: bool,
    verified: bool,
}

impl Demands {
    /// Those of a configuration.
    pub(super) fn of(config: &Config) -> Demands {
        Demands { users: !config.users.is_empty(), ..config.tls.as_ref().map(Demands::of_tls).unwrap_or_default() }
    }

    fn of_tls(tls: &Tls) -> Demands {
        let newest_only = tls.versions.iter().all(|version| version.version == ProtocolVersion::TLSv1_3);
        Demands { tls: true, newest_only, certificate: Certificate::of(&tls.client_auth), users: false }
    }

    /// What these would no longer do that those before did.
    pub(super) fn lack(&self, before: &Demands) -> Option<&'static str> {
        let (now, then) = (self.certificate, before.certificate);
        [
            (before.tls && !self.tls, "take TLS away"),
            (then.asked && !now.asked, "ask clients for no certificate any more"),
            (then.required && !now.required, "let clients in that show no certificate"),
            (then.verified && !now.verified, "no longer look who signed the certificates of clients"),
            (before.newest_only && !self.newest_only, "speak an older version of TLS"),
            (before.users && !self.users, "take the users away"),
        ]
        .into_iter()
        .find_map(|(lost, what)| lost.then_some(what))
    }
}

impl Certificate {
    fn of(wanted: &ClientAuth) -> Certificate {
        let (required, verified) = match wanted {
            ClientAuth::None => return Certificate::default(),
            ClientAuth::Request => (false, false),
            ClientAuth::RequireAny => (true, false),
            ClientAuth::VerifyIfGiven(_) => (false, true),
            ClientAuth::RequireAndVerify(_) => (true, true),
        };
        Certificate { asked: true, required, verified }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const TLS: &str = "tls_server_config:\n  cert_file: c\n  key_file: k\n";
    /// The hash of no password.
    const USER: &str = "basic_auth_users:\n  a: $2b$04$vxDDxHrXz9byy.74oVvWp.i2fKO7vGIlP7U95f76VAH4ypa6qJ3t6\n";

    fn demands(text: &str) -> Demands {
        Demands::of(&Config::read(text, Path::new("/")).unwrap())
    }

    fn asking(kind: &str) -> String {
        let authority = if kind.contains("Verify") { "  client_ca_file: ca\n" } else { "" };
        format!("{TLS}  client_auth_type: {kind}\n{authority}")
    }

    /// Of each pair of kinds: whether the second may come after the first. In the order of the table, which says of each what
    /// it asks: nothing, a certificate, one that must come, one that must be signed if it comes, both.
    #[test]
    fn certificates_of_clients() {
        let kinds = [
            ("NoClientCert", [true, true, true, true, true]),
            ("RequestClientCert", [false, true, true, true, true]),
            ("RequireAnyClientCert", [false, false, true, false, true]),
            ("VerifyClientCertIfGiven", [false, false, false, true, true]),
            ("RequireAndVerifyClientCert", [false, false, false, false, true]),
        ];
        for (before, may) in kinds {
            for ((after, _), may) in kinds.into_iter().zip(may) {
                let lack = demands(&asking(after)).lack(&demands(&asking(before)));
                assert_eq!(lack.is_none(), may, "{before} to {after}: {lack:?}");
            }
        }
    }

    #[test]
    fn tls_its_versions_and_users() {
        let newest = format!("{TLS}  min_version: TLS13\n");
        for (before, after, lack) in [
            (TLS, "", Some("take TLS away")),
            (TLS, USER, Some("take TLS away")),
            (USER, TLS, Some("take the users away")),
            (USER, "", Some("take the users away")),
            (&newest, TLS, Some("speak an older version of TLS")),
            (TLS, &newest, None),
            ("", TLS, None),
            ("", USER, None),
            (USER, &USER.replace("a:", "b:"), None),
            (TLS, &(TLS.to_owned() + USER), None),
        ] {
            assert_eq!(demands(after).lack(&demands(before)), lack, "{before} to {after}");
        }
    }

    /// An editor that writes in place is caught at every length of the file: what is read then is refused, or asks for as much.
    #[test]
    fn no_part_of_a_file_asks_for_less() {
        let whole = asking("RequireAndVerifyClientCert") + USER;
        let before = demands(&whole);
        for length in 0..whole.len() {
            if let Ok(part) = Config::read(&whole[..length], Path::new("/")) {
                let part = Demands::of(&part);
                assert!(part.lack(&before).is_some() || part == before, "{:?}", &whole[..length]);
            }
        }
    }
}
