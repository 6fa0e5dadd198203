//! An OpenMetrics page turned into text 0.0.4, the one format that Prometheus 2 and 3 both take without being
//! told anything.
//!
//! We never ask for OpenMetrics, but some servers offer nothing else, and the same bytes under another
//! Content-Type would cost the whole scrape. What comes out has the families, types, samples and values that
//! the official Python client gives to a reader of the text format:
//!
//! | OpenMetrics | text 0.0.4 |
//! |---|---|
//! | counter `x` | counter `x_total` |
//! | info `x` | gauge `x_info` |
//! | unknown `x` | untyped `x` |
//! | stateset `x` | gauge `x` |
//! | gaugehistogram `x` | gauges `x_bucket`, `x_gcount`, `x_gsum`: a text histogram may only rise |
//! | `x_created` inside a counter, histogram or summary | gauge `x_created` behind it |
//! | float seconds as timestamp | whole milliseconds |
//! | `{"a.b","c.d"="1"} 2` | `a_b{c_d="1"} 2`, unless that is the name of another: see [`unquoted`] |
//! | exemplars, UNIT, the end mark | left out |
//! | HELP and TYPE of `vllm:x` before samples of `vllm_x` (clients that escape only half) | of `vllm_x` |
//!
//! Text 1.0.0 knows such names too; [`unquoted`] is for pages that are text but for them.
//!
//! This is no validator. A line that it does not understand stays as it is and where it is: the scanner behind
//! it knows what Prometheus refuses.

mod family;
mod line;
mod quoted;

use family::families;
use line::{Line, is_end_mark, lines};
pub use quoted::unquoted;
use quoted::{Taken, name_of};

/// Whether a page is OpenMetrics by its own looks: it ends in the end mark. For pages whose Content-Type does
/// not say.
pub fn is_openmetrics(body: &[u8]) -> bool {
    lines(body).rev().find(|line| !line.trim_ascii().is_empty()).is_some_and(is_end_mark)
}

/// The page as text 0.0.4. Total: any bytes give some page.
pub fn to_text(body: &[u8]) -> Vec<u8> {
    let taken = Taken::of(|| lines(body).filter_map(|line| name_of(&Line::read(line))));
    let underscored = families(body, &taken).any(|family| family.is_underscored());
    // Families of their own for `_created` need a little more room than they had as samples.
    let mut out = Vec::with_capacity(body.len() + body.len() / 4);
    for family in families(body, &taken) {
        family.write(underscored, &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::line::Sample;
    use super::*;

    /// Converts and compares; both sides are joined by line ends for readability.
    fn converts(openmetrics: &str, text: &str) {
        let got = to_text(openmetrics.as_bytes());
        assert_eq!(String::from_utf8(got).unwrap(), text);
    }

    #[test]
    fn a_counter_gets_its_suffix_and_created_becomes_a_gauge_behind_it() {
        converts(
            "# HELP c What.\n# TYPE c counter\nc_total{k=\"1\"} 5\nc_created{k=\"1\"} 1.7e9\nc_total{k=\"2\"} 6\n\
             c_created{k=\"2\"} 1.8e9\n# TYPE g gauge\ng 1\n# EOF\n",
            "# HELP c_total What.\n# TYPE c_total counter\nc_total{k=\"1\"} 5\nc_total{k=\"2\"} 6\n\
             # HELP c_created What.\n# TYPE c_created gauge\nc_created{k=\"1\"} 1.7e9\nc_created{k=\"2\"} 1.8e9\n\
             # TYPE g gauge\ng 1\n",
        );
    }

    #[test]
    fn metadata_in_any_order_and_without_samples() {
        converts(
            "# TYPE c counter\n# UNIT c seconds\n# HELP c What.\n# EOF\n",
            "# TYPE c_total counter\n# HELP c_total What.\n",
        );
    }

    #[test]
    fn a_histogram_whose_name_ends_in_total_keeps_it() {
        converts(
            "# TYPE t_total histogram\nt_total_bucket{le=\"+Inf\"} 1 # {trace_id=\"x\"} 0.5 1.5\nt_total_count 1\nt_total_sum 2\n\
             t_total_created 3\n# EOF",
            "# TYPE t_total histogram\nt_total_bucket{le=\"+Inf\"} 1\nt_total_count 1\nt_total_sum 2\n\
             # TYPE t_total_created gauge\nt_total_created 3\n",
        );
    }

    #[test]
    fn types_that_text_does_not_know() {
        converts("# TYPE x unknown\nx 1\n", "# TYPE x untyped\nx 1\n");
        converts("# TYPE x info\nx_info{v=\"1\"} 1\n", "# TYPE x_info gauge\nx_info{v=\"1\"} 1\n");
        converts("# TYPE x stateset\nx{x=\"a\"} 1\n", "# TYPE x gauge\nx{x=\"a\"} 1\n");
        converts(
            "# HELP x What.\n# TYPE x gaugehistogram\nx_bucket{k=\"1\",le=\"+Inf\"} 2\nx_gcount{k=\"1\"} 2\nx_gsum{k=\"1\"} 3\n\
             x_bucket{k=\"2\",le=\"+Inf\"} 2\n",
            "# HELP x_bucket What.\n# TYPE x_bucket gauge\nx_bucket{k=\"1\",le=\"+Inf\"} 2\nx_bucket{k=\"2\",le=\"+Inf\"} 2\n\
             # HELP x_gcount What.\n# TYPE x_gcount gauge\nx_gcount{k=\"1\"} 2\n\
             # HELP x_gsum What.\n# TYPE x_gsum gauge\nx_gsum{k=\"1\"} 3\n",
        );
    }

    #[test]
    fn a_type_that_nobody_knows_is_left_to_the_scanner() {
        converts("# TYPE x nonsense\nx 1\n", "# TYPE x nonsense\nx 1\n");
    }

    #[test]
    fn a_counter_that_is_not_true_to_openmetrics_keeps_name_and_metadata_together() {
        converts("# TYPE x counter\nx 1\n", "# TYPE x counter\nx 1\n");
        converts("# TYPE x_total counter\nx_total 1\n", "# TYPE x_total counter\nx_total 1\n");
    }

    #[test]
    fn exemplars_go_and_seconds_become_milliseconds() {
        converts("c_total{k=\"a # b\"} 5 # {trace_id=\"t\"} 1.0\n", "c_total{k=\"a # b\"} 5\n");
        converts("c_total 5 1795984744.512 # {} 1.0 1\n", "c_total 5 1795984744512\n");
        converts("a 1 1700000000\nb{k=\"v\"} 1 0.0005\nc 1 -1.5\n", "a 1 1700000000000\nb{k=\"v\"} 1 1\nc 1 -1500\n");
        converts("a 1 NaN\nb 1 1e300\n", "a 1 NaN\nb 1 1e300\n");
    }

    #[test]
    fn names_in_quotes_are_escaped_by_underscores() {
        converts("{\"http.lat\",k=\"1\"} 4\n", "http_lat{k=\"1\"} 4\n");
        converts("{\"a:b é\\\"\"} 4\n", "a:b___ 4\n");
        converts("{\"a\\\\n\"} 4\n", "a_n 4\n");
        converts("{\"1.x\", \"l:1.z\" = \"a\\\"b\" , k=\"\"} 4\n", "__x{l_1_z=\"a\\\"b\",k=\"\"} 4\n");
        converts(
            "# HELP \"a.b\" What.\n# TYPE \"a.b\" gauge\n{\"a.b\"} 1\n",
            "# HELP a_b What.\n# TYPE a_b gauge\na_b 1\n",
        );
    }

    #[test]
    fn metadata_follows_the_spelling_of_the_samples() {
        converts(
            "# HELP vllm:c What.\n# TYPE vllm:c counter\nvllm_c_total 1\nvllm_c_created 2\n# TYPE vllm:empty counter\n# EOF\n",
            "# HELP vllm_c_total What.\n# TYPE vllm_c_total counter\nvllm_c_total 1\n\
             # HELP vllm_c_created What.\n# TYPE vllm_c_created gauge\nvllm_c_created 2\n# TYPE vllm_empty_total counter\n",
        );
    }

    #[test]
    fn help_loses_the_escaping_of_quotes_only() {
        converts("# HELP a a \\\"b\\\" \\\\ \\n c\\\n", "# HELP a a \"b\" \\\\ \\n c\\\n");
        converts("# HELP a \\\"\n", "# HELP a \"\n");
    }

    #[test]
    fn what_is_not_understood_stays_where_it_is() {
        for page in [
            "a 1 2 3\n",
            "\n",
            "a\n",
            "a{k=\"v} 1\n",
            "# comment\n",
            "{} 1\n",
            "x{\"y\"} 1\n",
            "\u{0}\n",
            "{\"\"} 1\n",
            "#EOF\n",
            "# TYPE a\u{16}gauge\na 1\n",
            "# TYPE a\na 1\n",
        ] {
            converts(page, page);
        }
        converts(
            "# TYPE a gauge\na{k=\"1\"} 1\n???\na{k=\"2\"} 1\n",
            "# TYPE a gauge\na{k=\"1\"} 1\n???\na{k=\"2\"} 1\n",
        );
    }

    #[test]
    fn line_ends_of_dos_and_a_missing_last_one() {
        converts("# TYPE c counter\r\nc_total 1\r\n# EOF\r\n", "# TYPE c_total counter\nc_total 1\n");
        converts("a 1", "a 1\n");
    }

    #[test]
    fn the_end_mark_tells_openmetrics() {
        for page in ["a 1\n# EOF\n", "# EOF", "a 1\n# EOF\r\n", "# EOF\n\n  \n"] {
            assert!(is_openmetrics(page.as_bytes()), "{page:?}");
        }
        for page in ["", "\n", "a 1\n", "# EOF\na 1\n", "#EOF\n", "# EOFX\n"] {
            assert!(!is_openmetrics(page.as_bytes()), "{page:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_give_some_page(body: Vec<u8>) {
            is_openmetrics(&body);
            to_text(&body);
        }

        #[test]
        fn nearly_good_pages_keep_their_samples(body in "((# (HELP|TYPE|UNIT) [ab:.\"]{1,3} (counter|info|x)|[ab_:]{0,3}(_total|_created)?[{}\"=,a. \\\\]{0,6} 1( 2)?( # x)?)\r?\n){0,12}") {
            let samples = |page: &[u8]| lines(page).filter(|line| Sample::read(line).is_some()).count();
            let page = to_text(body.as_bytes());
            proptest::prop_assert_eq!(samples(&page), samples(body.as_bytes()));
        }
    }
}
