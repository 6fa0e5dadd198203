//! Pages of further upstreams beside the main one: each family once, with one HELP and TYPE, contiguous.
//!
//! Prometheus accepts a name in two places of a page; stricter readers refuse the whole page for it. So a family of
//! a further page that an earlier page has is left out and counted, and what stays is put in order.
//!
//! `process_*`, `python_*` and `http_*` are left out always: every server has them and nothing in them says whose they
//! are. Let through while the main page lacks them (it is down, or has them in one mode and not in another), they
//! would go on under the main server's labels.

use std::collections::{HashMap, HashSet};

use crate::exposition::named_lines;

/// Names of the metrics on a page.
pub type Taken = HashSet<Vec<u8>>;

/// Adds the names on a page.
pub fn take_names(page: &[u8], taken: &mut Taken) {
    let mut last: &[u8] = b"";
    for name in named_lines(page).filter_map(|(name, _)| name) {
        if name != last {
            last = name;
            taken.insert(name.to_vec());
        }
    }
}

/// What of a further page can be appended.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Addition {
    /// Its families that no earlier page has, each in one piece.
    pub text: Vec<u8>,
    /// Families left out because an earlier page has them.
    pub left_out: usize,
}

/// Sorts the lines of a page of valid text 0.0.4 by family, in the order in which the families appear. Lines
/// without a name belong to nothing and go.
pub fn addition(page: &[u8], taken: &Taken) -> Addition {
    let families = group(page);
    let (colliding, new): (Vec<_>, Vec<_>) = families
        .into_iter()
        .partition(|family| family.names.iter().any(|name| is_anyones(name) || taken.contains(*name)));
    Addition { text: new.iter().flat_map(Grouped::written).collect(), left_out: colliding.len() }
}

/// Whether every server has a family of this name.
fn is_anyones(name: &[u8]) -> bool {
    [&b"process_"[..], b"python_", b"http_"].iter().any(|prefix| name.starts_with(prefix))
}

/// The lines of one family.
#[derive(Default)]
struct Grouped<'p> {
    /// Its name, and for a histogram those of its samples.
    names: HashSet<&'p [u8]>,
    help: Option<&'p [u8]>,
    kind: Option<&'p [u8]>,
    samples: Vec<&'p [u8]>,
}

impl Grouped<'_> {
    /// HELP, TYPE and samples, each line with its line end: the last one of a page may lack it.
    fn written(&self) -> Vec<u8> {
        let lines = self.help.iter().chain(&self.kind).chain(&self.samples);
        lines.flat_map(|line| [line.strip_suffix(b"\n").unwrap_or(line), b"\n"].concat()).collect()
    }

    fn histogram(&self) -> bool {
        self.kind.is_some_and(|line| {
            line.trim_ascii_end().ends_with(b"histogram") || line.trim_ascii_end().ends_with(b"summary")
        })
    }
}

fn group(page: &[u8]) -> Vec<Grouped<'_>> {
    let mut families: Vec<Grouped<'_>> = Vec::new();
    let mut places: HashMap<&[u8], usize> = HashMap::new();
    for (name, span) in named_lines(page) {
        let (Some(name), line) = (name, span.of(page)) else { continue };
        let base = base_name(name).and_then(|base| places.get(base)).filter(|at| families[**at].histogram());
        let at = base.copied().unwrap_or_else(|| *places.entry(name).or_insert(families.len()));
        if at == families.len() {
            families.push(Grouped::default());
        }
        let family = &mut families[at];
        family.names.insert(name);
        match line.trim_ascii_start() {
            comment if comment.starts_with(b"#") && is_help(comment) => family.help = family.help.or(Some(line)),
            comment if comment.starts_with(b"#") => family.kind = family.kind.or(Some(line)),
            _ => family.samples.push(line),
        }
    }
    families
}

fn is_help(comment: &[u8]) -> bool {
    comment[1..].trim_ascii_start().starts_with(b"HELP")
}

/// The family's name where a sample has the name of a histogram's or summary's part.
fn base_name(name: &[u8]) -> Option<&[u8]> {
    [&b"_bucket"[..], b"_sum", b"_count"].into_iter().find_map(|part| name.strip_suffix(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(page: &str) -> Taken {
        let mut taken = Taken::new();
        take_names(page.as_bytes(), &mut taken);
        taken
    }

    fn added(main: &str, extra: &str) -> (String, usize) {
        let addition = addition(extra.as_bytes(), &taken(main));
        (String::from_utf8(addition.text).unwrap(), addition.left_out)
    }

    #[test]
    fn a_scattered_family_comes_out_in_one_piece_with_one_header() {
        let extra = "# HELP a first\n# TYPE a gauge\na{k=\"1\"} 1\n# HELP b other\n# TYPE b gauge\nb 1\n\
                     # HELP a second text\n# TYPE a gauge\na{k=\"2\"} 2\na{k=\"3\"} 3";
        let expected = "# HELP a first\n# TYPE a gauge\na{k=\"1\"} 1\na{k=\"2\"} 2\na{k=\"3\"} 3\n\
                        # HELP b other\n# TYPE b gauge\nb 1\n";
        assert_eq!(added("", extra), (expected.into(), 0));
    }

    #[test]
    fn families_of_an_earlier_page_are_left_out_and_counted() {
        let main = "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1\nx 1\n";
        let extra =
            "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 2\n# TYPE x counter\nx 9\ny 2\n";
        assert_eq!(added(main, extra), ("y 2\n".into(), 2));
    }

    #[test]
    fn what_every_server_has_is_left_out_even_where_no_earlier_page_has_it() {
        let extra = "process_open_fds 3\npython_info 1\nhttp_requests_total 2\nhttpx 1\nmy_process_open_fds 4\n";
        assert_eq!(added("x 1\n", extra), ("httpx 1\nmy_process_open_fds 4\n".into(), 3));
    }

    #[test]
    fn a_histogram_is_one_family_and_a_like_named_counter_is_not_part_of_it() {
        let extra = "# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n# TYPE g_sum gauge\ng_sum 1\n";
        assert_eq!(added("h_sum 1\n", extra), ("# TYPE g_sum gauge\ng_sum 1\n".into(), 1));
        assert_eq!(added("g 1\n", extra).1, 0);
    }
}
