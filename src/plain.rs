//! What the system and the libraries say of a failure, in words for people: no numbers of the platform, no names of types,
//! no positions in a text that nobody sees.

use std::io;

use serde_json::error::Category;

/// An I/O error as a clause, without the number of the platform's error: `permission denied`.
pub fn io(error: &io::Error) -> String {
    let text = error.to_string();
    // The resolver's own words differ from box to box.
    if text.starts_with("failed to lookup address information") {
        return "the name has no address".to_owned();
    }
    let words = text.split(" (os error").next().unwrap_or(&text);
    let (first, rest) = words.split_at(words.chars().next().map_or(0, char::len_utf8));
    first.to_lowercase() + rest
}

/// An error with all that led to it, a clause each.
pub fn chain(error: &anyhow::Error) -> String {
    let clause = |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref().map_or_else(|| cause.to_string(), io);
    error.chain().map(clause).collect::<Vec<_>>().join(": ")
}

/// Why `text` is no JSON, as a sentence after whoever sent it.
pub fn no_json(text: &[u8], error: &serde_json::Error) -> String {
    let begins = text.trim_ascii_start();
    match error.classify() {
        _ if begins.is_empty() => "sent an empty answer in place of JSON".to_owned(),
        _ if begins.starts_with(b"<") => "sent a page for browsers (HTML) in place of JSON".to_owned(),
        Category::Eof => "broke off amid its JSON".to_owned(),
        _ => "sent something else than JSON".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn io_errors_are_plain_words() {
        assert_eq!(io(&io::Error::from_raw_os_error(111)), "connection refused");
        assert_eq!(io(&io::Error::other("Odd KiB")), "odd KiB");
        let unresolved = std::net::ToSocketAddrs::to_socket_addrs("no-such-host.invalid:1").unwrap_err();
        assert_eq!(io(&unresolved), "the name has no address");
    }

    #[test]
    fn a_chain_ends_in_plain_words() {
        let error = Err::<(), _>(io::Error::from_raw_os_error(13)).context("cannot read the file").unwrap_err();
        assert_eq!(chain(&error), "cannot read the file: permission denied");
    }

    #[test]
    fn what_is_no_json_is_told_by_what_it_looks_like() {
        let said = |text: &str| no_json(text.as_bytes(), &serde_json::from_str::<serde_json::Value>(text).unwrap_err());
        assert_eq!(said(" \n"), "sent an empty answer in place of JSON");
        assert_eq!(said("\n<!doctype html>"), "sent a page for browsers (HTML) in place of JSON");
        assert_eq!(said("{\"status\":\"succ"), "broke off amid its JSON");
        assert_eq!(said("vllm:up 1"), "sent something else than JSON");
    }
}
