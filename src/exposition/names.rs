//! The names that are wanted, and how one on a page is told to be among them.

/// Number of a wanted name in its [`Names`].
pub type NameId = usize;

/// The names that dialects and corrections read.
#[derive(Debug)]
pub struct Names {
    /// The names of each length: so few that looking through them is quicker than hashing.
    by_length: Vec<Vec<Spelling>>,
    spelled: Vec<&'static str>,
}

/// One way to write a wanted name.
#[derive(Clone, Debug)]
struct Spelling {
    /// The ends of names tell them apart sooner than their beginnings, which many share.
    end: [u8; END],
    text: String,
    id: NameId,
}

const END: usize = 8;

/// The last bytes of a name, or as many as there are.
fn end_of(name: &[u8]) -> [u8; END] {
    name.last_chunk().copied().unwrap_or_else(|| {
        let mut end = [0; END];
        end[..name.len()].copy_from_slice(name);
        end
    })
}

impl Names {
    /// The set of all `names`; one that is given twice counts once. Some clients write `_` for the colon of a name,
    /// so that spelling means the same, unless it is a wanted name itself.
    pub fn new(names: impl IntoIterator<Item = &'static str>) -> Names {
        let mut set = Names { by_length: Vec::new(), spelled: Vec::new() };
        for name in names {
            if set.add(name.to_owned(), set.spelled.len()) {
                set.spelled.push(name);
            }
        }
        for id in 0..set.spelled.len() {
            set.add(set.spelled[id].replace(':', "_"), id);
        }
        set
    }

    /// How many there are: their numbers are below.
    pub(super) fn count(&self) -> usize {
        self.spelled.len()
    }

    /// The name as this program spells it.
    pub(super) fn spelled(&self, name: NameId) -> &'static str {
        self.spelled[name]
    }

    /// Whether the spelling is new.
    fn add(&mut self, spelling: String, id: NameId) -> bool {
        let is_new = self.id(&spelling).is_none();
        if is_new {
            let lengths = self.by_length.len().max(spelling.len() + 1);
            self.by_length.resize(lengths, Vec::new());
            let end = end_of(spelling.as_bytes());
            self.by_length[spelling.len()].push(Spelling { end, text: spelling, id });
        }
        is_new
    }

    /// The number of a name.
    pub fn id(&self, name: &str) -> Option<NameId> {
        self.find(name.as_bytes())
    }

    /// The same for bytes of a page.
    pub(super) fn find(&self, name: &[u8]) -> Option<NameId> {
        let (alike, end) = (self.by_length.get(name.len())?, end_of(name));
        let is_it = |known: &&Spelling| known.end == end && known.text.as_bytes() == name;
        alike.iter().find(is_it).map(|known| known.id)
    }
}
