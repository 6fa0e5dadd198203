//! Label values: any text, written into a sample the way clients do, is read as it was meant; and any bytes between
//! braces are read as the tests' own reader reads them. `fuzz/run 60 labels`
#![no_main]

use kvtier_exporter::exposition::{Exposition, Names, unescape};
use kvtier_exporter::family::{Desc, Family, encode};
use kvtier_exporter_fuzz::reader::{self, Entry};
use libfuzzer_sys::fuzz_target;

const DESC: Desc = Desc::gauge("a", "A.");

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        comes_back(text);
        assert_eq!(unescape(text), meaning(text));
    }
    is_read_as_by_another(bytes);
});

/// Through the encoder that writes our own families, and through the reader that takes them in.
fn comes_back(text: &str) {
    let mut family = Family::new(DESC);
    family.push(vec![("j", text.to_owned()), ("k", "x".to_owned())], 1.0);
    let page = encode(&[family]);
    let names = Names::new(["a"]);
    let scan = Exposition::scan(page.as_bytes(), &names);
    let kept = scan.samples("a").first().map(|sample| (sample.labels.value("j"), sample.labels.value("k")));
    assert_eq!(kept, Some((text.into(), "x".into())), "{page:?}");
}

/// The three escapes of the format, and nothing else, by hand.
fn meaning(raw: &str) -> String {
    let (mut out, mut at) = (String::new(), 0);
    while at < raw.len() {
        let rest = &raw[at..];
        let (meant, length) = match rest.as_bytes() {
            [b'\\', b'n', ..] => ("\n", 2),
            [b'\\', b'"', ..] => ("\"", 2),
            [b'\\', b'\\', ..] => ("\\", 2),
            _ => {
                let length = rest.chars().next().map_or(0, char::len_utf8);
                (&rest[..length], length)
            }
        };
        out.push_str(meant);
        at += length;
    }
    out
}

/// Three samples in a row, since a line that repeats the one before is read another way.
fn is_read_as_by_another(bytes: &[u8]) {
    let sample = [b"a{", bytes, b"} 1\n"].concat();
    let page = [&sample[..], b"a{l=\"w\",", bytes, b"} 2\n", &sample].concat();
    let theirs = reader::read(&page);
    if theirs.refusal.is_some() || page.contains(&0) {
        return;
    }
    let theirs: Vec<Vec<(String, String)>> = theirs.entries.into_iter().filter_map(labels_of_a).collect();
    let names = Names::new(["a"]);
    let scan = Exposition::scan(&page, &names);
    let ours: Vec<Vec<(String, String)>> = scan.samples("a").iter().map(|sample| settled(sample.labels)).collect();
    assert_eq!(ours, theirs, "{}", page.escape_ascii());
}

fn labels_of_a(entry: Entry) -> Option<Vec<(String, String)>> {
    match entry {
        Entry::Sample(sample) if sample.name == "a" => Some(sample.labels),
        _ => None,
    }
}

/// Labels by name, and without every name that was given an empty value even once.
fn settled(labels: kvtier_exporter::exposition::Labels<'_>) -> Vec<(String, String)> {
    let emptied = |name: &str| labels.iter().any(|(other, value)| other == name && value.is_empty());
    let kept = labels.iter().filter(|(name, _)| !emptied(name));
    let mut kept: Vec<_> = kept.map(|(name, value)| (name.to_owned(), unescape(value).into_owned())).collect();
    kept.sort();
    kept
}
