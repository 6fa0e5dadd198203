//! Who may come in: names with bcrypt hashes.
//!
//! A hash takes a tenth of a second of CPU and more, so a password that was right is remembered as a keyed digest for as long
//! as its user's hash stays what it is. Every refusal takes as long as every other: nobody learns from it which names exist.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;

use super::hashing::{Check, Digest, Hashing};
use super::source::Source;

/// A bcrypt hash. It has no way out: neither Debug nor an error shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Hash {
    text: String,
    cost: u32,
}

/// Why a text is no hash to work with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashError {
    /// Not bcrypt at all.
    Malformed,
    /// It would take too long.
    Expensive,
}

impl Hash {
    /// Above it, a wrong password takes more than about five seconds of CPU.
    pub const COSTLIEST: u32 = 16;

    /// Checks the form of a hash.
    ///
    /// # Errors
    /// [`HashError`].
    pub fn parse(text: &str) -> Result<Hash, HashError> {
        let parts: bcrypt::HashParts = text.parse().map_err(|_| HashError::Malformed)?;
        match parts.get_cost() {
            cost @ 4..=Hash::COSTLIEST => Ok(Hash { text: text.to_owned(), cost }),
            17..=31 => Err(HashError::Expensive),
            _ => Err(HashError::Malformed),
        }
    }

    pub(super) fn fits(&self, password: &[u8]) -> bool {
        bcrypt::verify(password, &self.text).unwrap_or(false)
    }

    pub(super) fn cost(&self) -> u32 {
        self.cost
    }
}

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hash(***)")
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may come in.
    Granted,
    /// It said nothing, or something wrong.
    Denied,
    /// Its client has gone, and too many of those wait.
    Busy,
}

/// A set of users.
pub struct Users {
    accounts: BTreeMap<String, Arc<Account>>,
    hashing: Arc<Hashing>,
}

/// One user.
pub(super) struct Account {
    pub(super) hash: Hash,
    /// Digest of the password that was right last.
    proven: Mutex<Option<Digest>>,
}

impl Account {
    pub(super) fn prove(&self, digest: Digest) {
        *self.proven.lock().unwrap_or_else(PoisonError::into_inner) = Some(digest);
    }

    /// Digests are keyed, so how long it takes to compare them tells nothing.
    pub(super) fn is_proven(&self, digest: &Digest) -> bool {
        self.proven.lock().unwrap_or_else(PoisonError::into_inner).as_ref() == Some(digest)
    }
}

/// What a client claims.
pub(super) struct Claim {
    pub(super) user: String,
    pub(super) password: Vec<u8>,
}

impl Users {
    /// Nobody yet, with the line in which all who come later wait.
    pub(super) fn nobody(hashing: Arc<Hashing>) -> Users {
        Users { accounts: BTreeMap::new(), hashing }
    }

    /// The set after this one. What was remembered of a user stays, unless its hash is another.
    pub(super) fn followed_by(&self, users: Vec<(String, Hash)>) -> Users {
        let account = |(name, hash): (String, Hash)| {
            let before = self.accounts.get(&name).filter(|account| account.hash == hash).cloned();
            (name, before.unwrap_or_else(|| Arc::new(Account { hash, proven: Mutex::default() })))
        };
        Users { accounts: users.into_iter().map(account).collect(), hashing: Arc::clone(&self.hashing) }
    }

    /// How many there are; without any, everybody may come in.
    pub fn count(&self) -> usize {
        self.accounts.len()
    }

    /// Whether the `Authorization` header of a client at `source` lets its request in. `gone` ends when the client has gone.
    pub(crate) async fn check(
        &self,
        authorization: Option<&HeaderValue>,
        source: Source,
        gone: impl Future<Output = ()>,
    ) -> Verdict {
        let costs = self.accounts.values().map(|account| account.hash.cost());
        let Some(cost) = costs.max() else { return Verdict::Granted };
        let Some(claim) = authorization.and_then(claim) else { return Verdict::Denied };
        let (digest, account) = (self.hashing.digest(&claim), self.accounts.get(&claim.user).cloned());
        let check = Check { claim, digest, account, cost };
        if check.is_proven() { Verdict::Granted } else { self.hashing.check(check, source, gone).await }
    }
}

/// The claim of a `Basic` header.
fn claim(header: &HeaderValue) -> Option<Claim> {
    let (scheme, packed) = header.to_str().ok()?.split_once(' ')?;
    let unpacked = STANDARD.decode(packed.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let colon = unpacked.iter().position(|byte| *byte == b':')?;
    let user = String::from_utf8(unpacked[..colon].to_vec()).ok()?;
    Some(Claim { user, password: unpacked[colon + 1..].to_vec() })
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    /// "fakepassword", as the toolkit's sources say of it.
    const FAKE: &str = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi";

    fn header(text: &str) -> HeaderValue {
        HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(text))).unwrap()
    }

    fn nobody() -> Users {
        Users::nobody(Arc::new(Hashing::new().unwrap()))
    }

    fn prom() -> Vec<(String, Hash)> {
        vec![("prom".to_owned(), Hash::parse(FAKE).unwrap())]
    }

    async fn check(users: &Users, header: Option<&HeaderValue>) -> Verdict {
        users.check(header, IpAddr::from(Ipv4Addr::LOCALHOST).into(), pending()).await
    }

    fn proven(users: &Users, text: &str) -> bool {
        let claim = claim(&header(text)).unwrap();
        users.accounts["prom"].is_proven(&users.hashing.digest(&claim))
    }

    #[tokio::test]
    async fn the_right_password_comes_in_and_is_remembered() {
        let users = nobody().followed_by(prom());
        assert!(!proven(&users, "prom:fakepassword"));
        assert_eq!(check(&users, Some(&header("prom:fakepassword"))).await, Verdict::Granted);
        assert!(proven(&users, "prom:fakepassword"));
        assert!(!proven(&users, "prom:fakepassworD") && !proven(&users, "pro:mfakepassword"));
        assert_eq!(check(&users, Some(&header("prom:fakepassworD"))).await, Verdict::Denied);
    }

    #[tokio::test]
    async fn who_is_remembered_stays_so_while_the_hash_is_the_same() {
        let users = nobody().followed_by(prom());
        assert_eq!(check(&users, Some(&header("prom:fakepassword"))).await, Verdict::Granted);
        let other = ("other".to_owned(), Hash::parse(FAKE).unwrap());
        let users = users.followed_by([prom(), vec![other]].concat());
        assert!(proven(&users, "prom:fakepassword"));
        let renewed = FAKE.replace("/LDeSi", "/LEeSi");
        let users = users.followed_by(vec![("prom".to_owned(), Hash::parse(&renewed).unwrap())]);
        assert!(!proven(&users, "prom:fakepassword"));
        assert_eq!(check(&users, Some(&header("prom:fakepassword"))).await, Verdict::Denied);
    }

    #[tokio::test]
    async fn everything_else_does_not() {
        let users = nobody().followed_by(prom());
        for text in ["prom:wrong", "other:fakepassword", "prom:", ":", "prom:fakepassword2"] {
            assert_eq!(check(&users, Some(&header(text))).await, Verdict::Denied, "{text}");
        }
        assert_eq!(check(&users, None).await, Verdict::Denied);
        for text in ["Basic", "Basic !", "Bearer cHJvbTpmYWtlcGFzc3dvcmQ=", "Basic cHJvbQ==", ""] {
            assert_eq!(check(&users, Some(&HeaderValue::from_static(text))).await, Verdict::Denied, "{text}");
        }
    }

    #[tokio::test]
    async fn without_users_everybody_comes_in() {
        assert_eq!(check(&nobody(), None).await, Verdict::Granted);
    }

    /// The client has gone before its turn: the hash is worked out nevertheless.
    #[tokio::test]
    async fn a_turn_is_kept() {
        let users = nobody().followed_by(prom());
        let right = header("prom:fakepassword");
        let source = IpAddr::from(Ipv4Addr::LOCALHOST).into();
        tokio::select! {
            biased;
            verdict = users.check(Some(&right), source, pending()) => panic!("too soon: {verdict:?}"),
            () = tokio::task::yield_now() => {}
        }
        while !proven(&users, "prom:fakepassword") {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    #[test]
    fn hashes() {
        assert!(Hash::parse(FAKE).is_ok());
        assert!(Hash::parse(&FAKE.replace("$10$", "$16$")).is_ok());
        assert_eq!(Hash::parse(&FAKE.replace("$10$", "$17$")), Err(HashError::Expensive));
        for text in
            ["", "secret", "$2y$10$short", &FAKE.replace("$10$", "$03$"), &FAKE.replace("$2y", "$3y"), &FAKE[1..]]
        {
            assert_eq!(Hash::parse(text), Err(HashError::Malformed), "{text}");
        }
        assert_eq!(format!("{:?}", Hash::parse(FAKE).unwrap()), "Hash(***)");
    }
}
