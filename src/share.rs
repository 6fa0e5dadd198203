//! Shares of a whole: what is told of one that cannot be one.
//!
//! Each ratio of ours is a share, and its two sides are readings of one page. Where the page contradicts itself (more
//! tokens computed than prompted, a tier pinned three times over) the quotient lies outside 0…1. It says nothing then,
//! and which of its sides is wrong nobody can tell: the sample is [`Withheld`], and the log and `/debug` say so. It is
//! never cut to 0 or 1, which would look like a reading.

/// How far outside 0…1 a value still is a share: so much comes of rounding. A quotient of doubles is off by some 1e-16,
/// and a sum of a thousand of them by 1e-13; one token too many shows in the ninth place until a thousand million were
/// counted.
pub const ROUNDING: f64 = 1e-9;

/// The value as a share of a whole, without what rounding added; `None` where it can be none.
pub fn share(value: f64) -> Option<f64> {
    (-ROUNDING..=1.0 + ROUNDING).contains(&value).then(|| value.clamp(0.0, 1.0))
}

/// A sample of ours that is left out, since it would lie outside 0…1.
#[derive(Clone, Debug, PartialEq)]
pub struct Withheld {
    /// Our family.
    pub family: &'static str,
    /// The tier, for families that have one sample for each.
    pub tier: Option<String>,
    /// What the page makes of it.
    pub value: f64,
    /// The readings that it comes of, with the families that they are from.
    pub from: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_no_contradiction_and_one_token_too_many_is() {
        assert_eq!(share(0.25), Some(0.25));
        // The next double after 1, and the one before 0 of a difference of tenths.
        assert_eq!((share(1.000_000_000_000_000_2), share(-2.8e-17)), (Some(1.0), Some(0.0)));
        assert_eq!(share(1_000_001.0 / 1_000_000.0), None);
        for impossible in [3.0, -1.0, -0.001, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(share(impossible), None, "{impossible}");
        }
    }
}
