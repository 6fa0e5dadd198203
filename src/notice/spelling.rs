//! What the names on a page of no known engine look like, so that somebody can be told what was seen.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::advise::words::many;
use crate::dialect;
use crate::exposition::named_lines;

/// Through what a page came: the `via` label of `kvtier_upstream_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// Straight from who counts, as far as the names tell.
    #[default]
    Direct,
    /// Through something that put words before the names, or changed their colons.
    Prefixed,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Via::Direct => "direct",
            Via::Prefixed => "prefixed",
        })
    }
}

/// What the names look like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spelling {
    /// How many names there are, or as many as are held.
    pub names: usize,
    /// First words of the names, the most common first.
    pub words: Vec<String>,
    /// How names of an engine are spelled, where there are any: the commonest way.
    pub engine: Option<Spelled>,
}

/// Names of an engine as a page spells them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spelled {
    /// The project.
    pub project: &'static str,
    /// What stands before the name proper, such as `ray_vllm_`.
    pub prefix: String,
    /// One of the names.
    pub example: String,
    /// Whether they stand there as the engine writes them.
    pub via: Via,
}

/// Projects by the first word of their names. The longer words go first.
const PROJECTS: [(&str, &str); 4] =
    [("lmcache_mp", "LMCache"), ("lmcache", "LMCache"), ("sglang", "SGLang"), ("vllm", "vLLM")];

/// How many names are held. A page of an engine has a few hundred.
const HELD: usize = 4096;

/// How many ways of spelling are told apart.
const MOST_WAYS: usize = 64;

/// How many first words are told.
const WORDS: usize = 3;

/// No name that is told is longer.
const LENGTH: usize = 60;

impl Spelling {
    /// Looks through the names of a page in text 0.0.4. A page may have millions of names, so not all of them are held: the first
    /// words are those of the first names, while names of an engine are looked for to the end.
    pub fn of(body: &[u8]) -> Spelling {
        let (mut names, mut ways) = (BTreeSet::new(), BTreeMap::new());
        let may_be_of_an_engine = Spelling::may_be_of_an_engine(body);
        let mut last: &[u8] = b"";
        for name in named_lines(body).filter_map(|(name, _)| name).filter(|name| !name.starts_with(b"kvtier_")) {
            if name == std::mem::replace(&mut last, name) || names.contains(name) {
                continue;
            }
            if names.len() < HELD {
                names.insert(name);
            } else if !may_be_of_an_engine {
                break;
            }
            if may_be_of_an_engine {
                count(&mut ways, spelled(&String::from_utf8_lossy(name)));
            }
        }
        Spelling { names: names.len(), words: first_words(&names), engine: commonest(ways) }
    }

    /// Whether the page can have a name of an engine in it, however spelled: told much sooner.
    pub fn may_be_of_an_engine(body: &[u8]) -> bool {
        PROJECTS.iter().any(|(word, _)| memchr::memmem::find(body, word.as_bytes()).is_some())
    }

    /// Through what the page came.
    pub fn via(&self) -> Via {
        self.engine.as_ref().map_or(Via::Direct, |engine| engine.via)
    }

    /// How many names were looked at, for people.
    pub fn counted(&self) -> String {
        let more = if self.names == HELD { "at least " } else { "" };
        format!("{more}{}", many(self.names, "name"))
    }
}

/// The first words of names, the most common first; each with the sign that ends it.
fn first_words(names: &BTreeSet<&[u8]>) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        let end = name.iter().position(|byte| matches!(byte, b'_' | b':')).map_or(name.len(), |at| at + 1);
        *counts.entry(shown(&String::from_utf8_lossy(&name[..end]))).or_default() += 1;
    }
    let mut words: Vec<_> = counts.into_iter().collect();
    // Stable: of equally common ones the first of the alphabet.
    words.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    words.into_iter().take(WORDS).map(|(word, _)| word).collect()
}

/// A name that some dialect reads, at the end of this one and behind anything that ends in `_` or `:`.
fn spelled(name: &str) -> Option<Spelled> {
    let starts = std::iter::once(0).chain(name.match_indices(['_', ':']).map(|(at, _)| at + 1));
    for at in starts {
        let rest = &name[at..];
        let Some((word, project)) = PROJECTS.iter().find(|(word, _)| begins_with_word(rest, word)) else { continue };
        let proper = rest[word.len()..].trim_start_matches([':', '_']);
        let signs = rest.len() - word.len() - proper.len();
        // A colon can become more signs than one.
        let id = if signs == 1 { dialect::NAMES.id(rest) } else { dialect::NAMES.id(&format!("{word}_{proper}")) };
        if id.is_none() {
            continue;
        }
        let end = at + word.len() + signs;
        let via = if at == 0 && signs == 1 && (rest[word.len()..].starts_with(':') || *word == "lmcache_mp") {
            Via::Direct
        } else {
            Via::Prefixed
        };
        return Some(Spelled { project, prefix: shown(&name[..end]), example: shown(name), via });
    }
    None
}

fn begins_with_word(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|rest| rest.starts_with([':', '_']))
}

/// Ways of spelling with how many names have each, by what stands in front.
type Ways = BTreeMap<String, (usize, Spelled)>;

fn count(ways: &mut Ways, spelled: Option<Spelled>) {
    let Some(one) = spelled else { return };
    if let Some((count, known)) = ways.get_mut(&one.prefix) {
        *count += 1;
        // The order of a page says nothing: the same names are told of in the same words.
        if one.example < known.example {
            known.example = one.example;
        }
    } else if ways.len() < MOST_WAYS {
        ways.insert(one.prefix.clone(), (1, one));
    }
}

/// The spelling that most names have; of equals the first of the alphabet.
fn commonest(ways: Ways) -> Option<Spelled> {
    let most = ways.values().map(|(count, _)| *count).max()?;
    ways.into_values().find(|(count, _)| *count == most).map(|(_, one)| one)
}

/// A name of a readable length.
fn shown(name: &str) -> String {
    let short: String = name.chars().take(LENGTH).collect();
    let mark = if short.len() < name.len() { "…" } else { "" };
    format!("{short}{mark}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Spelling {
        Spelling::of(names.iter().map(|name| format!("{name} 1\n")).collect::<String>().as_bytes())
    }

    fn engine(names: &[&str]) -> Option<(&'static str, String, Via)> {
        of(names).engine.map(|one| (one.project, one.prefix, one.via))
    }

    #[test]
    fn names_behind_words_of_others_are_found() {
        let cases = [
            ("ray_vllm_num_requests_running", "vLLM", "ray_vllm_", Via::Prefixed),
            ("ray_vllm:num_requests_running", "vLLM", "ray_vllm:", Via::Prefixed),
            ("kserve_vllm_prompt_tokens_total", "vLLM", "kserve_vllm_", Via::Prefixed),
            ("a:b_sglang_page_size", "SGLang", "a:b_sglang_", Via::Prefixed),
            ("x_lmcache_mp_l1_memory_usage_bytes", "LMCache", "x_lmcache_mp_", Via::Prefixed),
            ("vllm_num_requests_running", "vLLM", "vllm_", Via::Prefixed),
            ("vllm__num_requests_running", "vLLM", "vllm__", Via::Prefixed),
            ("vllm:num_requests_running", "vLLM", "vllm:", Via::Direct),
            ("lmcache_mp_l1_memory_usage_bytes", "LMCache", "lmcache_mp_", Via::Direct),
        ];
        for (name, project, prefix, via) in cases {
            assert_eq!(engine(&[name]), Some((project, prefix.to_owned(), via)), "{name}");
        }
    }

    #[test]
    fn a_word_alone_makes_no_engine() {
        let names =
            ["envoy_cluster_vllm_requests", "vllm", "vllmx_num_requests_running", "http_requests_total", "éa_b"];
        assert_eq!(engine(&names), None);
    }

    #[test]
    fn the_commonest_words_and_the_commonest_spelling_are_told() {
        let seen = of(&["process_a", "python_a", "python_b", "go_a", "ray_x", "kvtier_shm_size_bytes", "process_b"]);
        assert_eq!(seen.words, ["process_", "python_", "go_"]);
        assert_eq!(seen.names, 6, "those of another exporter in front are not counted");
        let two = ["a_vllm_prompt_tokens_total", "b_vllm_prompt_tokens_total", "b_vllm_num_requests_running"];
        assert_eq!(engine(&two), Some(("vLLM", "b_vllm_".to_owned(), Via::Prefixed)));
        assert_eq!(of(&[]), Spelling::default());
    }

    #[test]
    fn a_page_of_very_many_names_is_not_held_and_an_engine_is_found_at_its_end() {
        let mut names: Vec<String> = (0..HELD + 1000).map(|number| format!("x{number}_total")).collect();
        let seen = |names: &[String]| of(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!((seen(&names).names, seen(&names).counted()), (HELD, "at least 4096 names".to_owned()));
        names.push("ray_vllm_num_requests_running".to_owned());
        assert_eq!(seen(&names).via(), Via::Prefixed);
        // One way more than are told apart.
        let ways: Vec<String> = (0..=MOST_WAYS).map(|way| format!("a{way}_vllm_num_requests_running")).collect();
        assert_eq!(seen(&ways).engine.map(|one| one.prefix), Some("a0_vllm_".to_owned()));
    }

    #[test]
    fn a_name_without_end_is_shown_in_part() {
        assert_eq!(shown(&"n".repeat(100)), format!("{}…", "n".repeat(LENGTH)));
    }
}
