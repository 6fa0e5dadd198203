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
    let mut families = Families::of(further);
    families.leave_out_those_of(main);
    let mut parted = Parted::default();
    let parts = further.iter().map(|page| families.add(page, &mut parted)).collect();
    Joined { text: families.written(), parts }
}

/// The families of all further pages, in the order in which they appear. A page may have one on each of its shortest lines, so
/// there is nothing for each of them that has memory of its own.
struct Families<'p> {
    numbers: HashMap<&'p [u8], u32>,
    list: Vec<Family>,
    /// The lines that stay, as they came.
    lines: Vec<Line<'p>>,
    /// Of families with more than one sample.
    series: HashSet<&'p [u8]>,
}

/// Histograms and summaries that are known by now: their samples have names of their own.
#[derive(Default)]
struct Parted<'p>(HashSet<&'p [u8]>);

/// The names of the parts of histograms and summaries.
const PARTS: [&[u8]; 3] = [b"_bucket", b"_sum", b"_count"];

impl<'p> Parted<'p> {
    /// The family of a line with this name: the name itself, or what it is a part of where that is known by now.
    fn family(&mut self, name: &'p [u8], line: &[u8]) -> &'p [u8] {
        if has_parts(line) {
            self.0.insert(name);
        }
        let base = PARTS.into_iter().find_map(|part| name.strip_suffix(part));
        base.filter(|base| self.0.contains(base)).unwrap_or(name)
    }
}

/// What is there of a family.
#[derive(Clone, Copy, Default)]
struct Family {
    /// The main page has it, or every server does.
    is_left_out: bool,
    /// Which of its parts the main page has under their own names.
    parts_left_out: [bool; PARTS.len()],
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
    family: u32,
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
    /// The families of these pages, with no lines yet.
    fn of(pages: &'p [Vec<u8>]) -> Families<'p> {
        // Room for as many as there can be: a table that grows needs its former self beside it.
        let most = pages.iter().map(|page| named_lines(page).filter(|(name, _)| name.is_some()).count()).sum();
        let (mut numbers, mut list) = (HashMap::with_capacity(most), Vec::new());
        let mut parted = Parted::default();
        for (page, (name, span)) in pages.iter().flat_map(|page| named_lines(page).map(move |line| (page, line))) {
            let Some(name) = name else { continue };
            let family = parted.family(name, span.of(page));
            let next = list.len();
            numbers.entry(family).or_insert_with(|| {
                list.push(Family { is_left_out: is_of_the_process(family), ..Family::default() });
                // A page has fewer lines than that, and what is more is left out.
                u32::try_from(next).unwrap_or(u32::MAX)
            });
        }
        Families { numbers, list, lines: Vec::new(), series: HashSet::new() }
    }

    /// Marks what the main page has by its name, or by the name of a part.
    fn leave_out_those_of(&mut self, main: &[u8]) {
        for name in named_lines(main).filter_map(|(name, _)| name) {
            if let Some(family) = self.numbered(name) {
                family.is_left_out = true;
            }
            for (number, part) in PARTS.into_iter().enumerate() {
                if let Some(family) = name.strip_suffix(part).and_then(|base| self.numbered(base)) {
                    family.parts_left_out[number] = true;
                }
            }
        }
    }

    fn numbered(&mut self, family: &[u8]) -> Option<&mut Family> {
        self.numbers.get(family).and_then(|number| self.list.get_mut(*number as usize))
    }

    /// Adds the lines of a page.
    fn add(&mut self, page: &'p [u8], parted: &mut Parted<'p>) -> Part {
        let (mut left_out, mut samples) = (HashSet::new(), 0);
        for (name, span) in named_lines(page) {
            let Some(name) = name else { continue };
            let family = parted.family(name, span.of(page));
            let Some(&number) = self.numbers.get(family) else { continue };
            if self.is_left_out(number, &name[family.len()..]) {
                left_out.insert(number);
            } else if self.add_line(number, span.of(page)) {
                samples += 1;
            }
        }
        Part { left_out: left_out.len(), samples }
    }

    /// Whether the lines of a part of this family (or of the family itself, where the part has no name) are left out.
    fn is_left_out(&self, number: u32, part: &[u8]) -> bool {
        let Some(family) = self.list.get(number as usize) else { return true };
        let part = PARTS.iter().position(|known| *known == part);
        family.is_left_out || part.is_some_and(|part| family.parts_left_out[part])
    }

    /// Adds a line; `true` for a sample that stays.
    fn add_line(&mut self, family: u32, line: &'p [u8]) -> bool {
        let (text, has) = (line.trim_ascii(), &mut self.list[family as usize]);
        let rank = match text {
            [b'#', ..] if is_help(text) => (!std::mem::replace(&mut has.has_help, true)).then_some(Rank::Help),
            [b'#', ..] => (!std::mem::replace(&mut has.has_kind, true)).then_some(Rank::Kind),
            _ => self.is_new(family, text).then_some(Rank::Sample),
        };
        self.lines.extend(rank.map(|rank| Line { family, rank, text: line }));
        matches!(rank, Some(Rank::Sample))
    }

    /// Whether a family has no sample of this series yet. Most have one sample, which needs no entry.
    fn is_new(&mut self, family: u32, sample: &'p [u8]) -> bool {
        let samples = &mut self.list[family as usize].samples;
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
    let slot = |line: &Line<'_>| line.family as usize * RANKS + line.rank as usize;
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
