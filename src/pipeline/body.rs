//! A page as it is read: what came, or the same without quotes around its names.

use std::cell::OnceCell;

use bytes::Bytes;

use crate::exposition::{Exposition, Layout, Names, Through};
use crate::openmetrics;

/// A page of text, and the same without quotes around its names, where it has such. Most pages have none and pay nothing
/// for it: only the lines that are refused are looked at for them.
pub(super) struct Body {
    came: Bytes,
    plain: OnceCell<Option<Bytes>>,
    through: Through,
}

impl Body {
    /// A page of text.
    pub(super) fn new(came: Bytes) -> Body {
        Body { came, plain: OnceCell::new(), through: Through::None }
    }

    /// The same page, of which is known through what it came: the lines that said so are gone.
    pub(super) fn come_through(self, through: Through) -> Body {
        Body { through, ..self }
    }

    /// A page of OpenMetrics turned into text: what is left of quotes in it is to be dropped.
    pub(super) fn from_openmetrics(page: &[u8]) -> Body {
        Body { came: openmetrics::to_text(page).into(), plain: OnceCell::from(None), through: Through::None }
    }

    pub(super) fn scan<'a>(&'a self, names: &'a Names) -> Exposition<'a> {
        self.scan_beside(Layout::none(), names)
    }

    pub(super) fn scan_beside<'a>(&'a self, layout: &Layout, names: &'a Names) -> Exposition<'a> {
        let page = Exposition::scan_beside(layout, &self.came, names);
        let mut page = match if page.has_quoted_names { self.plain() } else { None } {
            Some(plain) => {
                let mut page = Exposition::scan(plain, names);
                // Layouts are of pages as they came: a newer one would be of no more use here.
                page.is_unfamiliar = false;
                page
            }
            None => page,
        };
        page.through = page.through.max(self.through);
        page
    }

    fn plain(&self) -> Option<&Bytes> {
        self.plain.get_or_init(|| openmetrics::unquoted(&self.came).map(Bytes::from)).as_ref()
    }

    /// What was scanned.
    pub(super) fn bytes(&self) -> &Bytes {
        self.plain.get().and_then(Option::as_ref).unwrap_or(&self.came)
    }

    /// The same before a scan. A sample whose name stands in quotes starts its line with a brace.
    pub(super) fn with_plain_names(&self) -> &Bytes {
        let has_braces = self.came.starts_with(b"{") || memchr::memmem::find(&self.came, b"\n{").is_some();
        if has_braces { self.plain().unwrap_or(&self.came) } else { &self.came }
    }
}
