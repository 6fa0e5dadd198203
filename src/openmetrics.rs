//! stub
/// x
pub fn to_text(b: &[u8]) -> Vec<u8> {
    b.to_vec()
}
/// x
pub fn is_openmetrics(_b: &[u8]) -> bool {
    false
}
