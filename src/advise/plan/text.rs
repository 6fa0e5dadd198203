//! A planned tier as people read it.

use super::{PlannedTier, Wish};
use crate::advise::words::{count, size, wrapped};

impl PlannedTier {
    /// The tier for people.
    pub fn text(&self, wish: &Wish) -> String {
        let name = if self.tier == "ram" { "RAM" } else { "Disk" };
        let mut out = format!("{name} tier of {} per engine\n", size(self.size_bytes as f64));
        let mut line = |name: &str, text: &str| out.push_str(&format!("  {name:<7} {}\n", wrapped(text, 10)));
        line("holds", &self.holds(wish));
        for (at, cost) in self.costs.iter().enumerate() {
            line(if at == 0 { "costs" } else { "" }, cost);
        }
        if !self.offered {
            line("refused", "see below; no flags");
        }
        for block in &self.launch {
            out.push_str(&format!("\n  # {}\n", block.what));
            block.text.lines().for_each(|text| out.push_str(&format!("  {text}\n")));
        }
        out
    }

    fn holds(&self, wish: &Wish) -> String {
        let Some(tokens) = self.tokens else {
            return "an unknown number of tokens: give --bytes-per-token. A running engine tells it as \
                    kvtier_kv_bytes_per_token."
                .to_owned();
        };
        let times = match (self.gpu_pool_multiple, wish.gpu_pool_tokens) {
            (Some(multiple), Some(pool)) => {
                format!("{multiple:.2} times the {} tokens of the GPU pool", count(pool as f64))
            }
            _ => "an unknown multiple of the GPU pool: give --gpu-pool-tokens".to_owned(),
        };
        format!("{} tokens, {times}", count(tokens as f64))
    }
}
