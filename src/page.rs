//! The status page: one file that needs nothing but `/api/status`.
//!
//! The page itself is `page.html`. It names no host, loads nothing, and all its addresses are relative, so it works
//! offline and behind a path prefix that ends in a slash. Texts of upstream reach it as JSON only, and it shows them
//! as text. [`POLICY`] holds it to that: whatever somebody smuggles into it, the browser runs and fetches nothing.

/// The page, with one place for the address of the metrics.
const HTML: &str = include_str!("page.html");

/// That place.
const METRICS: &str = "{{metrics}}";

/// Content-Security-Policy of the page: its own style, its own script, its own JSON, and nothing else. The hashes
/// are those of what stands in the file; a test works them out anew and tells the new ones after an edit.
pub const POLICY: &str = "default-src 'none'; \
    style-src 'sha256-arvy+DvZ1kuxboc1gq9hIiPJVoVoYZNOoX6ZNb4ISQU='; \
    script-src 'sha256-6x7C0QL+9xLoTv2NXVawgl12XaWUH9hDnODy5j8wxac='; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page in front of metrics at `telemetry_path`, which begins with a slash.
pub fn html(telemetry_path: &str) -> String {
    HTML.replace(METRICS, &format!(".{}", escape(telemetry_path)))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    /// What stands between the one opening and the one closing tag.
    fn inside(tag: &str) -> &'static str {
        let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
        assert_eq!((HTML.matches(&open).count(), HTML.matches(&close).count()), (1, 1), "{tag}");
        HTML.split_once(&open).unwrap().1.split_once(&close).unwrap().0
    }

    #[test]
    fn the_policy_names_the_style_and_the_script_of_the_page() {
        for tag in ["style", "script"] {
            let hash = STANDARD.encode(ring::digest::digest(&ring::digest::SHA256, inside(tag).as_bytes()));
            let source = format!("{tag}-src 'sha256-{hash}'");
            assert!(POLICY.contains(&source), "page.html has changed. In POLICY write: {source}");
        }
    }

    #[test]
    fn the_page_is_small_and_names_no_other_place() {
        assert!(HTML.len() < 60_000, "{} bytes", HTML.len());
        // The name space of SVG is a name and not an address.
        let text = HTML.replace("http://www.w3.org/2000/svg", "");
        for foreign in ["http:", "https:", "src=", "url(", "@import", "href=\"/", "fetch('/", "innerHTML", "style=\""] {
            assert!(!text.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn the_metrics_are_linked_by_a_relative_and_escaped_address() {
        assert_eq!(HTML.matches(METRICS).count(), 1);
        assert!(html("/metrics").contains("href=\"./metrics\""));
        assert!(html("/a&\"b").contains("href=\"./a&amp;&quot;b\""));
        assert_eq!(escape("<a href='x'>\"&"), "&lt;a href=&#39;x&#39;&gt;&quot;&amp;");
    }
}
