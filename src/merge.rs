//! Pages of further upstreams beside the main one: each family once, with one HELP and TYPE, contiguous.
//!
//! Prometheus accepts a name in two places of a page; stricter readers refuse the whole page for it. So a family
//! that the main page has is left out of the further ones and counted. What several further pages have (one
//! LMCache worker on each port) becomes one family, unless every process has it.

use std::collections::{HashMap, HashSet};

use crate::exposition::named_lines;

/// Families about the serving process itself: two processes' cannot stand in one page, since nothing in their
/// labels tells them apart.
const OF_THE_PROCESS: [&[u8]; 4] = [b"process_", b"python_", b"http_", b"target_info"];

/// The further pages as one.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// Families that the main page does not have, each in one piece.
    pub text: Vec<u8>,
    /// For each further page, how many of its families were left out.
    pub left_out: Vec<usize>,
}

/// Joins further pages of valid text 0.0.4 beside the main one, in the order in which families appear. Lines without
/// a name belong to nothing and go; of two samples of one series the first stays.
pub fn join(main: &[u8], further: &[Vec<u8>]) -> Joined {
    let taken = names(main);
    let mut families = Families::default();
    let left_out = further.iter().enumerate().map(|(number, page)| families.add(number, page, &taken)).collect();
    Joined { text: families.list.iter().flat_map(Family::written).collect(), left_out }
}

fn names(page: &[u8]) -> HashSet<&[u8]> {
    named_lines(page).filter_map(|(name, _)| name).collect()
}

/// The families of all further pages.
#[derive(Default)]
struct Families<'p> {
    list: Vec<Family<'p>>,
    places: HashMap<&'p [u8], usize>,
    /// Histograms and summaries: their samples have names of their own.
    with_parts: HashSet<&'p [u8]>,
}

/// The lines of one family.
struct Family<'p> {
    /// The page that has it, where only one may.
    owner: usize,
    help: Option<&'p [u8]>,
    kind: Option<&'p [u8]>,
    samples: Vec<&'p [u8]>,
    series: HashSet<&'p [u8]>,
}

impl<'p> Families<'p> {
    /// Adds a page and returns how many of its families had to be left out.
    fn add(&mut self, page_number: usize, page: &'p [u8], taken: &HashSet<&[u8]>) -> usize {
        let mut left_out: HashSet<&[u8]> = HashSet::new();
        for (name, span) in named_lines(page) {
            let Some(name) = name else { continue };
            if has_parts(span.of(page)) {
                self.with_parts.insert(name);
            }
            let family = self.family_name(name);
            if taken.contains(name) || taken.contains(family) || !self.may_add(page_number, family) {
                left_out.insert(family);
            } else {
                self.line(page_number, family, span.of(page));
            }
        }
        left_out.len()
    }

    /// The name itself, or the family's where it names a part of a histogram or summary that is known.
    fn family_name(&self, name: &'p [u8]) -> &'p [u8] {
        let parts = [&b"_bucket"[..], b"_sum", b"_count"];
        let base = parts.into_iter().find_map(|part| name.strip_suffix(part));
        base.filter(|base| self.with_parts.contains(base)).unwrap_or(name)
    }

    fn may_add(&self, page_number: usize, family: &[u8]) -> bool {
        let known = self.places.get(family).map(|at| self.list[*at].owner);
        known.is_none_or(|owner| owner == page_number) || !OF_THE_PROCESS.iter().any(|start| family.starts_with(start))
    }

    fn line(&mut self, owner: usize, family: &'p [u8], line: &'p [u8]) {
        let at = *self.places.entry(family).or_insert(self.list.len());
        if at == self.list.len() {
            self.list.push(Family { owner, help: None, kind: None, samples: Vec::new(), series: HashSet::new() });
        }
        self.list[at].add(line);
    }
}

impl<'p> Family<'p> {
    fn add(&mut self, line: &'p [u8]) {
        let text = line.trim_ascii();
        match text {
            [b'#', ..] if is_help(text) => self.help = self.help.or(Some(line)),
            [b'#', ..] => self.kind = self.kind.or(Some(line)),
            _ => {
                let series = text.iter().rposition(|&b| b == b'}').map_or(text, |close| &text[..=close]);
                if self.series.insert(series) {
                    self.samples.push(line);
                }
            }
        }
    }

    /// HELP, TYPE and samples, each with its line end: the last line of a page may lack it.
    fn written(&self) -> Vec<u8> {
        let lines = self.help.iter().chain(&self.kind).chain(&self.samples);
        lines.flat_map(|line| [line.strip_suffix(b"\n").unwrap_or(line), b"\n"].concat()).collect()
    }
}

/// Whether this is the TYPE line of a histogram or summary.
fn has_parts(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    line.starts_with(b"#")
        && [&b" histogram"[..], b" summary"].iter().any(|kind| line.ends_with(kind))
        && !is_help(line)
}

fn is_help(comment: &[u8]) -> bool {
    comment[1..].trim_ascii_start().starts_with(b"HELP")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(main: &str, further: &[&str]) -> (String, Vec<usize>) {
        let further: Vec<Vec<u8>> = further.iter().map(|page| page.as_bytes().to_vec()).collect();
        let joined = join(main.as_bytes(), &further);
        (String::from_utf8(joined.text).unwrap(), joined.left_out)
    }

    #[test]
    fn a_scattered_family_comes_out_in_one_piece_with_one_header() {
        let extra = "# HELP a first\n# TYPE a gauge\na{k=\"1\"} 1\n# HELP b other\n# TYPE b gauge\nb 1\n\
                     # HELP a second text\n# TYPE a gauge\na{k=\"2\"} 2\na{k=\"3\"} 3";
        let expected = "# HELP a first\n# TYPE a gauge\na{k=\"1\"} 1\na{k=\"2\"} 2\na{k=\"3\"} 3\n\
                        # HELP b other\n# TYPE b gauge\nb 1\n";
        assert_eq!(joined("", &[extra]), (expected.into(), vec![0]));
    }

    #[test]
    fn families_of_the_main_page_are_left_out_and_counted() {
        let main = "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 1\nx 1\n";
        let extra =
            "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 2\n# TYPE x counter\nx 9\ny 2\n";
        assert_eq!(joined(main, &[extra]), ("y 2\n".into(), vec![2]));
    }

    #[test]
    fn a_histogram_is_one_family_and_a_like_named_counter_is_not_part_of_it() {
        let extra = "# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n# TYPE g_sum gauge\ng_sum 1\n";
        let main = "# TYPE h histogram\n";
        assert_eq!(joined(main, &[extra]), ("# TYPE g_sum gauge\ng_sum 1\n".into(), vec![1]));
        assert_eq!(joined("g 1\n", &[extra]).1, [0]);
    }

    #[test]
    fn two_workers_share_a_family_and_each_process_keeps_its_own() {
        let worker = |id: u32| {
            format!(
                "# TYPE m gauge\nm{{worker_id=\"{id}\"}} {id}\nm{{worker_id=\"all\"}} {id}\nprocess_open_fds {id}\n"
            )
        };
        let expected =
            "# TYPE m gauge\nm{worker_id=\"0\"} 0\nm{worker_id=\"all\"} 0\nm{worker_id=\"1\"} 1\nprocess_open_fds 0\n";
        assert_eq!(joined("", &[&worker(0), &worker(1)]), (expected.into(), vec![0, 1]));
    }
}
