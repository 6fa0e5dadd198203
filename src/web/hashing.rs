//! Passwords on their way to be checked: a line in which addresses take turns, and the one thread that works out hashes.
//!
//! One thread, so that those who guess cost one core and no more. It is none of the runtime's: name lookups that hang take
//! those.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use ring::{hmac, rand};
use tokio::sync::watch;

use super::source::Source;
use super::turns::{Number, Turns};
use super::users::{Account, Claim, Verdict};

/// Digest of a name and a password, with a key of this process.
pub(super) type Digest = [u8; 32];

/// The line, its thread, and the key of the digests.
pub(super) struct Hashing {
    key: hmac::Key,
    desk: Arc<Desk>,
}

#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    turns: Turns<Waiting>,
    /// There is a thread.
    open: bool,
    /// Nobody will come any more.
    closed: bool,
}

/// A claim in line, and where its verdict is told.
struct Waiting {
    check: Arc<Check>,
    verdict: watch::Sender<Option<Verdict>>,
}

/// What has to be worked out.
pub(super) struct Check {
    pub(super) claim: Claim,
    pub(super) digest: Digest,
    /// The user, if there is one of that name.
    pub(super) account: Option<Arc<Account>>,
    /// What a refusal costs.
    pub(super) cost: u32,
}

impl Hashing {
    /// With nobody in line.
    ///
    /// # Errors
    /// The system has no random bytes for the key of the digests.
    pub(super) fn new() -> Result<Hashing, ring::error::Unspecified> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new())?;
        Ok(Hashing { key, desk: Arc::default() })
    }

    pub(super) fn digest(&self, claim: &Claim) -> Digest {
        let mut context = hmac::Context::with_key(&self.key);
        // No name has a colon in it.
        [claim.user.as_bytes(), b":", &claim.password].into_iter().for_each(|part| context.update(part));
        let mut digest = Digest::default();
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }

    /// The verdict on a claim, when its turn has come. `gone` ends when the client has gone: its turn is kept for its next
    /// request as long as there is room for that.
    pub(super) async fn check(&self, check: Check, source: Source, gone: impl Future<Output = ()>) -> Verdict {
        let Some((mut wait, mut verdict)) = self.line_up(check, source) else { return Verdict::Busy };
        let told = tokio::select! {
            biased;
            told = verdict.wait_for(Option::is_some) => { drop(told); true }
            () = gone => false,
        };
        if !told {
            wait.leave();
            // It may still listen.
            drop(verdict.wait_for(Option::is_some).await);
        }
        let verdict = *verdict.borrow();
        verdict.unwrap_or(Verdict::Busy)
    }

    fn line_up(&self, check: Check, source: Source) -> Option<(Wait<'_>, watch::Receiver<Option<Verdict>>)> {
        let mut state = self.desk.state();
        if !state.open {
            let desk = Arc::clone(&self.desk);
            let work = thread::Builder::new().name("passwords".to_owned()).spawn(move || desk.work());
            work.inspect_err(|error| tracing::warn!(%error, "no password can be checked: there is no thread")).ok()?;
            state.open = true;
        }
        let digest = check.digest;
        let waiting = || Waiting { check: Arc::new(check), verdict: watch::Sender::new(None) };
        let (number, waiting) = state.turns.join(source, |other| other.check.digest == digest, waiting);
        let verdict = waiting.verdict.subscribe();
        self.desk.changed.notify_one();
        Some((Wait { desk: &self.desk, number: Some(number) }, verdict))
    }
}

impl Drop for Hashing {
    fn drop(&mut self) {
        self.desk.state().closed = true;
        self.desk.changed.notify_all();
    }
}

/// A client that waits.
struct Wait<'a> {
    desk: &'a Desk,
    number: Option<Number>,
}

impl Wait<'_> {
    fn leave(&mut self) {
        let surplus = self.number.take().and_then(|number| self.desk.state().turns.leave(number));
        if let Some(Waiting { verdict, .. }) = surplus {
            verdict.send_replace(Some(Verdict::Busy));
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Desk {
    fn work(&self) {
        while let Some(Waiting { check, verdict }) = self.next() {
            // A hash that breaks is no password that is right, and must not end the thread.
            let fits = catch_unwind(AssertUnwindSafe(|| check.fits())).unwrap_or(false);
            if let (true, Some(account)) = (fits, &check.account) {
                account.prove(check.digest);
                for other in self.state().turns.settle(|other| other.check.is_proven()) {
                    other.verdict.send_replace(Some(Verdict::Granted));
                }
            }
            verdict.send_replace(Some(if fits { Verdict::Granted } else { Verdict::Denied }));
        }
    }

    fn next(&self) -> Option<Waiting> {
        let mut state = self.state();
        loop {
            if state.closed {
                return None;
            }
            if let Some(waiting) = state.turns.call() {
                return Some(waiting);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Check {
    /// Whether this very claim was right before.
    pub(super) fn is_proven(&self) -> bool {
        self.account.as_ref().is_some_and(|account| account.is_proven(&self.digest))
    }

    /// Works it out. A `false` costs one hash of the highest cost, whoever is asked for: a hash of a lower one is followed by
    /// dummies. With costs c and m the work is 2^c, and 2^c + 2^(c+1) + … + 2^(m-1) makes it up to 2^m.
    fn fits(&self) -> bool {
        let password = &self.claim.password;
        let Some(account) = &self.account else {
            dummy(password, self.cost);
            return false;
        };
        let fits = account.hash.fits(password);
        if !fits {
            (account.hash.cost()..self.cost).for_each(|cost| dummy(password, cost));
        }
        fits
    }
}

fn dummy(password: &[u8], cost: u32) {
    // What comes out fits nothing.
    drop(std::hint::black_box(bcrypt::hash_with_salt(password, cost, [0; 16])));
}
