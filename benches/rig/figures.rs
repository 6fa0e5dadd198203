//! Medians, and whether a target was met.

/// The figure in the middle.
pub fn median(figures: &[f64]) -> f64 {
    quantile(figures, 0.5)
}

/// The figure below which this share of them lies.
pub fn quantile(figures: &[f64], share: f64) -> f64 {
    let mut figures = figures.to_vec();
    figures.sort_by(f64::total_cmp);
    figures[((figures.len() - 1) as f64 * share).round() as usize]
}

/// The median of the ratios within each round: what slows the machine down for a while slows both.
pub fn ratio(figures: &[f64], others: &[f64]) -> f64 {
    median(&figures.iter().zip(others).map(|(figure, other)| figure / other).collect::<Vec<_>>())
}

/// What was asked for and what came, as lines to print.
#[derive(Default)]
pub struct Targets {
    missed: usize,
}

impl Targets {
    /// A figure that may be at most so much.
    pub fn at_most(&mut self, what: &str, figure: f64, limit: f64) {
        self.note(what, figure, "≤", limit, figure <= limit);
    }

    /// A figure that must be at least so much.
    pub fn at_least(&mut self, what: &str, figure: f64, limit: f64) {
        self.note(what, figure, "≥", limit, figure >= limit);
    }

    fn note(&mut self, what: &str, figure: f64, sign: &str, limit: f64, met: bool) {
        self.missed += usize::from(!met);
        println!("| {} | {what} | {figure:.2} | {sign} {limit} |", if met { "pass" } else { "FAIL" });
    }

    /// Begins the table of targets.
    pub fn begin() -> Targets {
        println!("\n| target | what | measured | asked |\n|---|---|---|---|");
        Targets::default()
    }

    /// How many were missed.
    pub fn missed(&self) -> usize {
        self.missed
    }
}
