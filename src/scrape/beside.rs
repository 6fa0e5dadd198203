//! The layout that the main upstream's pages are read beside, and when another one is made.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::exposition::Layout;

/// What is remembered of the pages before. It makes the next one quicker to read and changes nothing that is read.
#[derive(Default)]
pub(super) struct Beside(Mutex<State>);

struct State {
    layout: Arc<Layout>,
    /// How many pages in a row it was of little help with.
    strange: u32,
    /// After how many of them the last one is laid out.
    patience: u32,
}

/// To lay a page out costs more than to read it. Pages that change each time, or that no layout helps with, do not pay for
/// it more often than this.
const MOST_PATIENCE: u32 = 64;

impl Default for State {
    fn default() -> State {
        State { layout: Arc::default(), strange: 0, patience: 1 }
    }
}

impl Beside {
    pub(super) fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.state().layout)
    }

    /// Takes note of a page. `layout` lays it out, if that is worth it by now.
    pub(super) fn note(&self, is_unfamiliar: bool, layout: impl FnOnce() -> Layout) {
        if self.state().is_time_for_another(is_unfamiliar) {
            let layout = Arc::new(layout());
            self.state().layout = layout;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// One strange page among others may be another server's behind the same address.
    fn is_time_for_another(&mut self, is_unfamiliar: bool) -> bool {
        if !is_unfamiliar {
            (self.strange, self.patience) = (0, 2);
            return false;
        }
        self.strange += 1;
        if self.strange < self.patience {
            return false;
        }
        (self.strange, self.patience) = (0, MOST_PATIENCE.min(2 * self.patience));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which of these pages are laid out, counted from 1. `true` is a page that is unfamiliar.
    fn laid_out(pages: impl IntoIterator<Item = bool>) -> Vec<usize> {
        let mut state = State::default();
        let pages = pages.into_iter().map(|is_unfamiliar| state.is_time_for_another(is_unfamiliar));
        (1..).zip(pages).filter_map(|(number, is_laid_out)| is_laid_out.then_some(number)).collect()
    }

    #[test]
    fn the_first_page_is_laid_out_and_then_none_as_long_as_it_helps() {
        assert_eq!(laid_out([true].into_iter().chain([false; 100])), [1]);
    }

    #[test]
    fn another_page_is_laid_out_when_it_comes_twice() {
        assert_eq!(laid_out([true, false, true, true, false, false, true, true, false]), [1, 4, 8]);
        assert_eq!(laid_out([true, false].repeat(50)), [1], "two servers behind one address");
    }

    #[test]
    fn pages_that_no_layout_helps_with_are_laid_out_ever_more_seldom() {
        assert_eq!(laid_out([true; 300]), [1, 3, 7, 15, 31, 63, 127, 191, 255]);
    }
}
