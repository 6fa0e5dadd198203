//! Pages of further upstreams beside the main one: each family once, with one HELP and TYPE, contiguous.
//!
//! Prometheus accepts a name in two places of a page; stricter readers refuse the whole page for it. So a family
//! that the main page has is left out of the further ones and counted. What several further pages have (one
//! LMCache worker on each port) becomes one family.
//!
//! What every server has about its own process is left out always: nothing in it says whose it is. Let through while
//! the main page lacks it (it is down, or has it in one mode and not in another), it would go on as the main server's.

use std::collections::{HashMap, HashSet};

use crate::exposition::named_lines;

/// Families about the serving process itself.
const OF_THE_PROCESS: [&[u8]; 4] = [b"process_", b"python_", b"http_", b"target_info"];

/// The further pages as one.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// Families that the main page does not have, each in one piece.
    pub text: Vec<u8>,
    /// What became of each further page.
    pub parts: Vec<Part>,
}

/// What became of one further page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Families left out.
    pub left_out: usize,
    /// Samples that stayed.
    pub samples: u64,
}

/// Joins further pages of valid text 0.0.4 beside the main one, in the order in which families appear. Lines without
/// a name belong to nothing and go; of two samples of one series the first stays.
pub fn join(main: &[u8], further: &[Vec<u8>]) -> Joined {
    let taken = names(main);
    let mut families = Families::default();
    let parts = further.iter().map(|page| families.add(page, &taken)).collect();
    drop(taken);
    Joined { text: families.written(), parts }
}

fn names(page: &[u8]) -> HashSet<&[u8]> {
    named_lines(page).filter_map(|(name, _)| name).collect()
}

/// The families of all further pages, in the order in which they appear. A page may have one on each of its shortest lines, so
/// there is nothing for each of them that has memory of its own.
#[derive(Default)]
struct Families<'p> {
    numbers: HashMap<&'p [u8], usize>,
    list: Vec<Family>,
    /// The lines that stay, as they came.
    lines: Vec<Line<'p>>,
    /// Of families with more than one sample.
    series: HashSet<&'p [u8]>,
    /// Histograms and summaries: their samples have names of their own.
    with_parts: HashSet<&'p [u8]>,
}

/// What is there of a family.
#[derive(Clone, Copy, Default)]
struct Family {
    has_help: bool,
    has_kind: bool,
    samples: Samples,
}

#[derive(Clone, Copy, Default)]
enum Samples {
    #[default]
    None,
    /// The line of this number.
    One(u32),
    Many,
}

/// A line that stays.
struct Line<'p> {
    family: usize,
    rank: Rank,
    text: &'p [u8],
}

/// What comes first of a family.
#[derive(Clone, Copy)]
enum Rank {
    Help,
    Kind,
    Sample,
}

/// How many ranks there are.
const RANKS: usize = 3;

impl<'p> Families<'p> {
    /// Adds a page.
    fn add(&mut self, page: &'p [u8], taken: &HashSet<&[u8]>) -> Part {
        let (mut left_out, mut samples) = (HashSet::<&[u8]>::new(), 0);
        for (name, span) in named_lines(page) {
            let Some(name) = name else { continue };
            if has_parts(span.of(page)) {
                self.with_parts.insert(name);
            }
            let family = self.family_name(name);
            if taken.contains(name) || taken.contains(family) || is_of_the_process(family) {
                left_out.insert(family);
            } else if self.add_line(family, span.of(page)) {
                samples += 1;
            }
        }
        Part { left_out: left_out.len(), samples }
    }

    /// The name itself, or the family's where it names a part of a histogram or summary that is known.
    fn family_name(&self, name: &'p [u8]) -> &'p [u8] {
        let parts = [&b"_bucket"[..], b"_sum", b"_count"];
        let base = parts.into_iter().find_map(|part| name.strip_suffix(part));
        base.filter(|base| self.with_parts.contains(base)).unwrap_or(name)
    }

    /// Adds a line; `true` for a sample that stays.
    fn add_line(&mut self, family: &'p [u8], line: &'p [u8]) -> bool {
        let family = self.number(family);
        let (text, has) = (line.trim_ascii(), &mut self.list[family]);
        let rank = match text {
            [b'#', ..] if is_help(text) => (!std::mem::replace(&mut has.has_help, true)).then_some(Rank::Help),
            [b'#', ..] => (!std::mem::replace(&mut has.has_kind, true)).then_some(Rank::Kind),
            _ => self.is_new(family, text).then_some(Rank::Sample),
        };
        self.lines.extend(rank.map(|rank| Line { family, rank, text: line }));
        matches!(rank, Some(Rank::Sample))
    }

    fn number(&mut self, family: &'p [u8]) -> usize {
        let number = *self.numbers.entry(family).or_insert(self.list.len());
        if number == self.list.len() {
            self.list.push(Family::default());
        }
        number
    }

    /// Whether a family has no sample of this series yet. Most have one sample, which needs no entry.
    fn is_new(&mut self, family: usize, sample: &'p [u8]) -> bool {
        let samples = &mut self.list[family].samples;
        match *samples {
            Samples::None => {
                *samples = u32::try_from(self.lines.len()).map_or(Samples::Many, Samples::One);
                if matches!(samples, Samples::Many) {
                    self.series.insert(series(sample));
                }
                return true;
            }
            Samples::One(first) => {
                *samples = Samples::Many;
                self.series.insert(series(self.lines[first as usize].text.trim_ascii()));
            }
            Samples::Many => {}
        }
        self.series.insert(series(sample))
    }

    /// HELP, TYPE and samples of each, each line with its end: the last one of a page may lack it.
    fn written(self) -> Vec<u8> {
        let Families { list, lines, numbers, series, .. } = self;
        drop((numbers, series));
        let mut text = Vec::with_capacity(lines.iter().map(|line| line.text.len() + 1).sum());
        for number in in_order(&lines, list.len()) {
            let line = lines[number].text;
            text.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(line));
            text.push(b'\n');
        }
        text
    }
}

/// The numbers of lines by family and rank, and there as they came.
fn in_order(lines: &[Line<'_>], families: usize) -> Vec<usize> {
    let slot = |line: &Line<'_>| line.family * RANKS + line.rank as usize;
    // First how many there are in each slot, then where each begins.
    let mut begins = vec![0; families * RANKS];
    lines.iter().for_each(|line| begins[slot(line)] += 1);
    let mut before = 0;
    begins.iter_mut().for_each(|count| before += std::mem::replace(count, before));
    let mut order = vec![0; lines.len()];
    for (number, line) in lines.iter().enumerate() {
        let at = &mut begins[slot(line)];
        order[*at] = number;
        *at += 1;
    }
    order
}

fn is_of_the_process(family: &[u8]) -> bool {
    OF_THE_PROCESS.iter().any(|start| family.starts_with(start))
}

/// Name and labels of a sample.
fn series(sample: &[u8]) -> &[u8] {
    let close = sample.iter().rposition(|&b| b == b'}').map(|close| close + 1);
    let end = close.or_else(|| sample.iter().position(u8::is_ascii_whitespace));
    &sample[..end.unwrap_or(sample.len())]
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
        let left_out = joined.parts.iter().map(|part| part.left_out).collect();
        (String::from_utf8(joined.text).unwrap(), left_out)
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
    fn two_workers_share_a_family() {
        let worker = |id: u32| {
            format!(
                "# TYPE m gauge\nm{{worker_id=\"{id}\"}} {id}\nm{{worker_id=\"all\"}} {id}\nprocess_open_fds {id}\n"
            )
        };
        let expected = "# TYPE m gauge\nm{worker_id=\"0\"} 0\nm{worker_id=\"all\"} 0\nm{worker_id=\"1\"} 1\n";
        assert_eq!(joined("", &[&worker(0), &worker(1)]), (expected.into(), vec![1, 1]));
        let pages = [worker(0).into_bytes(), worker(1).into_bytes()];
        let samples: Vec<_> = join(b"", &pages).parts.iter().map(|part| part.samples).collect();
        assert_eq!(samples, [2, 1]);
    }

    #[test]
    fn of_two_samples_of_one_series_the_first_stays() {
        let pages = ["a 1\nb{k=\"}\"} 1 5\nc 1\n", "a 2\nb{k=\"}\"} 1 6\nb{k=\"{\"} 2\nc\t2\n"];
        let expected = "a 1\nb{k=\"}\"} 1 5\nb{k=\"{\"} 2\nc 1\n";
        assert_eq!(joined("", &pages), (expected.into(), vec![0, 0]));
    }

    #[test]
    fn what_every_server_has_is_left_out_even_where_the_main_page_lacks_it() {
        let extra = "process_open_fds 3\npython_info 1\nhttp_requests_total 2\nhttpx 1\nmy_process_open_fds 4\n";
        assert_eq!(joined("x 1\n", &[extra]), ("httpx 1\nmy_process_open_fds 4\n".into(), vec![3]));
    }
}
