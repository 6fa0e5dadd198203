//! Families of ours on a page: another exporter stood before this one.

/// Families of ours in the page come from another exporter in front of it; ours replace them.
pub(super) fn is_own(name: &[u8]) -> bool {
    name.starts_with(b"kvtier_")
}

/// Whether a page came through another kvtier-exporter, and what that one did with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Through {
    /// Through none, as far as the page tells.
    #[default]
    None,
    /// Through one that replaced no value.
    Exporter,
    /// Through one that replaced values: those of the engine are not on the page.
    Corrected,
}

impl Through {
    /// What a sample of ours says: its name, and its value where that is a number.
    pub(super) fn told_by(name: &[u8], value: Option<f64>) -> Through {
        match name {
            b"kvtier_correction_active" if value != Some(0.0) => Through::Corrected,
            b"kvtier_correction_active" | b"kvtier_exporter_build_info" => Through::Exporter,
            _ => Through::None,
        }
    }
}
