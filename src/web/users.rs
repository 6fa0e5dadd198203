//! Who may come in: names with bcrypt hashes.
//!
//! A hash takes a tenth of a second of CPU, so it is worked out on a thread of its own, one at a time, and a
//! password that was right is remembered as a keyed digest for as long as this set of users is in use. An unknown
//! name takes as long as a wrong password.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use ring::{hmac, rand};
use tokio::sync::Semaphore;

/// Requests that wait for a hash. Prometheus' own are remembered after their first and never wait.
const QUEUE: usize = 64;

/// A bcrypt hash. It has no way out: neither Debug nor an error shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Hash(String);

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
            4..=Hash::COSTLIEST => Ok(Hash(text.to_owned())),
            17..=31 => Err(HashError::Expensive),
            _ => Err(HashError::Malformed),
        }
    }

    fn fits(&self, password: &[u8]) -> bool {
        bcrypt::verify(password, &self.0).unwrap_or(false)
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
    /// Too many passwords wait to be checked.
    Busy,
}

/// A set of users.
pub struct Users {
    accounts: BTreeMap<String, Account>,
    key: hmac::Key,
    queue: Semaphore,
    hashing: Arc<Semaphore>,
}

struct Account {
    hash: Hash,
    /// Digest of the password that was right last.
    proven: Mutex<Option<hmac::Tag>>,
}

/// What a client claims.
struct Claim {
    user: String,
    password: Vec<u8>,
}

impl Users {
    /// A set with nothing remembered.
    ///
    /// # Errors
    /// The system has no random bytes for the key of the digests.
    pub fn new(users: Vec<(String, Hash)>) -> Result<Users, ring::error::Unspecified> {
        let account = |hash| Account { hash, proven: Mutex::default() };
        Ok(Users {
            accounts: users.into_iter().map(|(name, hash)| (name, account(hash))).collect(),
            key: hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new())?,
            queue: Semaphore::new(QUEUE),
            hashing: Arc::new(Semaphore::new(1)),
        })
    }

    /// How many there are; without any, everybody may come in.
    pub fn count(&self) -> usize {
        self.accounts.len()
    }

    /// Whether the `Authorization` header lets a request in.
    pub async fn check(&self, authorization: Option<&HeaderValue>) -> Verdict {
        let Some(first) = self.accounts.values().next() else { return Verdict::Granted };
        let Some(claim) = authorization.and_then(claim) else { return Verdict::Denied };
        let account = self.accounts.get(&claim.user);
        if self.is_proven(account, &claim) {
            return Verdict::Granted;
        }
        let Ok(_place) = self.queue.try_acquire() else { return Verdict::Busy };
        let Ok(turn) = Arc::clone(&self.hashing).acquire_owned().await else { return Verdict::Busy };
        // Several clients with one password come at once after a start.
        if self.is_proven(account, &claim) {
            return Verdict::Granted;
        }
        let digest = hmac::sign(&self.key, &claim.digested());
        let hash = account.unwrap_or(first).hash.clone();
        let hashed = tokio::task::spawn_blocking(move || {
            let fits = hash.fits(&claim.password);
            // Only now: a client that went away must not make room for a second hash beside the first.
            drop(turn);
            fits
        });
        match (hashed.await, account) {
            (Ok(true), Some(account)) => {
                *account.proven.lock().unwrap_or_else(PoisonError::into_inner) = Some(digest);
                Verdict::Granted
            }
            _ => Verdict::Denied,
        }
    }

    fn is_proven(&self, account: Option<&Account>, claim: &Claim) -> bool {
        let proven = account.and_then(|account| *account.proven.lock().unwrap_or_else(PoisonError::into_inner));
        proven.is_some_and(|tag| hmac::verify(&self.key, &claim.digested(), tag.as_ref()).is_ok())
    }
}

impl Claim {
    fn digested(&self) -> Vec<u8> {
        [self.user.as_bytes(), b":", &self.password].concat()
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
    use super::*;

    /// "fakepassword", as the toolkit's sources say of it.
    const FAKE: &str = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi";

    fn header(text: &str) -> HeaderValue {
        HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(text))).unwrap()
    }

    fn users() -> Users {
        Users::new(vec![("prom".to_owned(), Hash::parse(FAKE).unwrap())]).unwrap()
    }

    #[tokio::test]
    async fn the_right_password_comes_in_and_is_remembered() {
        let users = users();
        assert_eq!(users.check(Some(&header("prom:fakepassword"))).await, Verdict::Granted);
        // No hash can be worked out any more: what comes in now was remembered.
        users.hashing.close();
        assert_eq!(users.check(Some(&header("prom:fakepassword"))).await, Verdict::Granted);
        assert_eq!(users.check(Some(&header("prom:fakepassworD"))).await, Verdict::Busy);
        assert_eq!(users.check(Some(&header("pro:mfakepassword"))).await, Verdict::Busy);
    }

    #[tokio::test]
    async fn everything_else_does_not() {
        let users = users();
        for text in ["prom:wrong", "other:fakepassword", "prom:", ":", "prom:fakepassword2"] {
            assert_eq!(users.check(Some(&header(text))).await, Verdict::Denied, "{text}");
        }
        assert_eq!(users.check(None).await, Verdict::Denied);
        for text in ["Basic", "Basic !", "Bearer cHJvbTpmYWtlcGFzc3dvcmQ=", "Basic cHJvbQ==", ""] {
            assert_eq!(users.check(Some(&HeaderValue::from_static(text))).await, Verdict::Denied, "{text}");
        }
    }

    #[tokio::test]
    async fn without_users_everybody_comes_in() {
        assert_eq!(Users::new(Vec::new()).unwrap().check(None).await, Verdict::Granted);
    }

    #[tokio::test]
    async fn a_full_queue_is_said_at_once() {
        let users = users();
        let _all = users.queue.try_acquire_many(u32::try_from(QUEUE).unwrap()).unwrap();
        assert_eq!(users.check(Some(&header("prom:x"))).await, Verdict::Busy);
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
