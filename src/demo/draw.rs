//! Chance that can be repeated: the same seed draws the same numbers (splitmix64).

/// A stream of pseudo-random numbers.
#[derive(Clone, Debug)]
pub(super) struct Draw(u64);

impl Draw {
    /// The stream of this seed.
    pub(super) fn new(seed: u64) -> Draw {
        Draw(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// At least 0 and below 1.
    pub(super) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// At least `low` and below `high`.
    pub(super) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// A whole number, at least `low` and below `high`.
    pub(super) fn whole(&mut self, low: u64, high: u64) -> u64 {
        self.between(low as f64, high as f64) as u64
    }

    /// Exponentially distributed around `mean`: mostly short, now and then long.
    pub(super) fn waiting(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }

    /// True in this share of the draws.
    pub(super) fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_splitmix64() {
        // The first outputs for seed 1234567, as published with the algorithm's reference code.
        let mut draw = Draw::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423_u64];
        assert_eq!([draw.next(), draw.next(), draw.next()], expected);
    }

    #[test]
    fn shares_and_means_are_what_they_say() {
        let mut draw = Draw::new(7);
        let hits = (0..10_000).filter(|_| draw.chance(0.25)).count();
        let mean = (0..10_000).map(|_| draw.waiting(20.0)).sum::<f64>() / 10_000.0;
        assert!((2300..2700).contains(&hits) && (19.0..21.0).contains(&mean), "{hits} {mean}");
    }
}
