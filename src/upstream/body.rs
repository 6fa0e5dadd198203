//! From the bytes of a response to a page: size cap, unpacking, and a look at whether it is metrics at all.
//!
//! Whether the lines are good is not judged here; that is the scanner's.

use std::io::{self, Read};
use std::sync::{Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, TRANSFER_ENCODING};
use tokio::task::yield_now;

use super::UpstreamError;
use super::error::io_cause;
use super::progress::Progress;
use crate::openmetrics;
use crate::pipeline::Format;

/// Collects a body up to its end, and what its framing says of that. What was read of a body that breaks off is thrown away:
/// the text format has no end mark, so a part of it looks whole and gives wrong totals.
pub(super) async fn read(
    headers: &HeaderMap,
    mut body: Incoming,
    limit: usize,
    spare: &Spare,
    progress: &Progress,
) -> Result<(Bytes, Framing), UpstreamError> {
    let too_large = UpstreamError::TooLarge { part: "body", limit };
    let announced = body.size_hint().exact().map(|length| usize::try_from(length).unwrap_or(usize::MAX));
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large);
    }
    let mut bytes = spare.take();
    bytes.reserve(room(announced.unwrap_or(0)));
    progress.read(0);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| broken(&error, bytes.len()))?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(too_large);
        }
        if bytes.len() + data.len() > bytes.capacity() {
            bytes.reserve(room(bytes.len() + data.len()) - bytes.len());
        }
        bytes.extend_from_slice(&data);
        progress.read(bytes.len());
    }
    progress.came();
    // Only the end of the connection ends a body that has no other framing (RFC 9112, 6.3).
    let vouched = announced.is_some() || is_chunked(headers);
    Ok((spare.keep(bytes.freeze()), Framing { vouched, protobuf: is_protobuf(headers) }))
}

/// What it means that a body breaks off after so many bytes. hyper tells chunks that it cannot read by an error of their data.
fn broken(error: &hyper::Error, bytes: usize) -> UpstreamError {
    use io::ErrorKind::{InvalidData, InvalidInput};
    match io_cause(error).map(io::Error::kind) {
        Some(InvalidData | InvalidInput) => UpstreamError::Chunks(bytes),
        _ => UpstreamError::Truncated(bytes),
    }
}

/// What the head of a response says of its body: whether its end can be told from an end that came too early, and whether it
/// calls itself Protobuf.
pub(super) struct Framing {
    vouched: bool,
    protobuf: bool,
}

fn is_chunked(headers: &HeaderMap) -> bool {
    let last = headers.get_all(TRANSFER_ENCODING).iter().next_back().and_then(|value| value.to_str().ok());
    let last = last.and_then(|codings| codings.rsplit(',').next());
    last.is_some_and(|coding| coding.trim().eq_ignore_ascii_case("chunked"))
}

/// Refuses a page of which nothing shows that it is whole: text ends with its last line where the framing does not vouch for
/// the end, and OpenMetrics with its end mark in any case. A cut right behind a line end cannot be seen in such a text.
pub(super) fn whole(page: &[u8], format: Format, framing: &Framing) -> Result<(), UpstreamError> {
    let has_end = || openmetrics::is_openmetrics(page);
    let lacks = match format {
        Format::OpenMetrics if !has_end() => "the # EOF that ends OpenMetrics",
        Format::Text | Format::Unsaid if !framing.vouched && !page.ends_with(b"\n") && !has_end() => {
            "an end of its last line"
        }
        _ => return Ok(()),
    };
    Err(UpstreamError::Unended { bytes: page.len(), lacks })
}

/// The memory of the last page, for the next one if nobody reads that page any more. To be given each page of memory
/// anew took a third of the CPU of a scrape of 2 MB.
#[derive(Default)]
pub(super) struct Spare(Mutex<Bytes>);

impl Spare {
    fn take(&self) -> BytesMut {
        let mut bytes = self.swap(Bytes::new()).try_into_mut().unwrap_or_default();
        bytes.clear();
        bytes
    }

    fn keep(&self, page: Bytes) -> Bytes {
        if page.len() <= KEPT {
            self.swap(page.clone());
        }
        page
    }

    fn swap(&self, bytes: Bytes) -> Bytes {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), bytes)
    }
}

/// The largest page whose memory is kept.
const KEPT: usize = 4 << 20;

/// How much memory to ask for to hold this many bytes. What is asked for and not used costs nothing: the system gives
/// pages when they are written to. glibc keeps freed memory for later unless it was asked for in a piece of more than
/// 32 MiB, so a large page in a smaller piece would stay with us for ever (21 MiB after one page of 20 MiB).
fn room(bytes: usize) -> usize {
    const LARGE: usize = 1 << 20;
    const GIVEN_BACK: usize = 33 << 20;
    if bytes < LARGE { bytes } else { bytes.max(GIVEN_BACK) }
}

/// Reads the beginning of a body that is of no use but for what it says. `true` when that was all of it.
pub(super) async fn peek(mut body: Incoming, enough: usize) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    while bytes.len() < enough {
        match body.frame().await {
            None => return (bytes, true),
            Some(Err(_)) => break,
            Some(Ok(frame)) => bytes.extend(frame.into_data().unwrap_or_default()),
        }
    }
    (bytes, false)
}

/// Undoes gzip, which some servers and proxies apply although they were asked not to.
pub(super) async fn unpack(headers: &HeaderMap, body: Bytes, limit: usize) -> Result<Bytes, UpstreamError> {
    let codings = codings(headers);
    match codings.to_ascii_lowercase().as_str() {
        "" => Ok(body),
        "gzip" | "x-gzip" => gunzip(&body, limit).await,
        _ => Err(UpstreamError::Encoding(format!("content-encoding {codings:?}"))),
    }
}

/// What was done to a body, in order: of all headers that say so, since some send several. "identity" is nothing.
fn codings(headers: &HeaderMap) -> String {
    let values = headers.get_all(CONTENT_ENCODING).iter().map(|value| value.to_str().unwrap_or("?"));
    let codings = values.flat_map(|value| value.split(',')).map(str::trim);
    let codings: Vec<&str> =
        codings.filter(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity")).collect();
    codings.join(", ")
}

/// Lets others have their turn after each piece, and ends with whoever waits for it.
async fn gunzip(packed: &[u8], limit: usize) -> Result<Bytes, UpstreamError> {
    const PIECE: u64 = 256 << 10;
    let mut bytes = Vec::new();
    let mut reader = MultiGzDecoder::new(packed);
    loop {
        let piece = reader.by_ref().take(PIECE).read_to_end(&mut bytes);
        let length = piece.map_err(|_| UpstreamError::Encoding("gzip that is damaged, or breaks off".to_owned()))?;
        if bytes.len() > limit {
            return Err(UpstreamError::TooLarge { part: "unpacked body", limit });
        }
        if length == 0 {
            return Ok(Bytes::from(bytes));
        }
        yield_now().await;
    }
}

/// How packed bodies begin (RFC 1952, 8878 and 1950 with its three usual levels), none of which is the beginning of a text.
const PACKED: [(&[u8], &str); 5] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\x78\x01", "deflate"),
    (b"\x78\x9c", "deflate"),
    (b"\x78\xda", "deflate"),
];

fn packed(body: &[u8]) -> Option<&'static str> {
    PACKED.iter().find(|(magic, _)| body.starts_with(magic)).map(|(_, how)| *how)
}

/// Refuses what is surely no metrics page. The Content-Type has no say in it: pages with a wrong one are common.
pub(super) fn sniff(body: &[u8], framing: &Framing) -> Result<(), UpstreamError> {
    if let Some(how) = packed(body) {
        return Err(UpstreamError::PackedUnsaid(how));
    }
    if framing.protobuf && is_binary(body) {
        return Err(UpstreamError::Protobuf);
    }
    let text = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body).trim_ascii_start();
    match text.first() {
        None => Err(UpstreamError::Empty),
        Some(b'<') => Err(UpstreamError::Content("HTML".to_owned())),
        Some(b'[') => Err(UpstreamError::Content("JSON".to_owned())),
        Some(b'{') if !is_quoted_name(&text[1..]) => Err(UpstreamError::Content("JSON".to_owned())),
        Some(_) => Ok(()),
    }
}

/// `{"http.lat",k="1"} 4` is a sample with a quoted name; `{"error":"loading"}` is JSON.
fn is_quoted_name(after_brace: &[u8]) -> bool {
    let Some(name) = after_brace.trim_ascii_start().strip_prefix(b"\"") else { return false };
    let mut escaped = false;
    let end = name.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    let after = end.map(|end| name[end + 1..].trim_ascii_start());
    after.and_then(<[u8]>::first).is_some_and(|byte| matches!(byte, b',' | b'}' | b'='))
}

impl UpstreamError {
    /// What it means that a page holds no sample.
    pub fn without_sample(body: &[u8]) -> UpstreamError {
        if is_binary(body) {
            UpstreamError::Binary
        } else {
            UpstreamError::Content("text that holds no sample".to_owned())
        }
    }
}

/// Whether the beginning of a body is no text: it has control characters that no text has, or is no UTF-8.
fn is_binary(body: &[u8]) -> bool {
    const BEGINNING: usize = 1024;
    let beginning = &body[..body.len().min(BEGINNING)];
    // A character that the end of the beginning cuts is none that is wrong.
    let is_utf8 = std::str::from_utf8(beginning).map_or_else(|error| error.error_len().is_none(), |_| true);
    !is_utf8 || beginning.iter().any(|byte| matches!(byte, 0..=8 | 14..=26))
}

fn is_protobuf(headers: &HeaderMap) -> bool {
    ["application/vnd.google.protobuf", "application/x-protobuf", "application/protobuf"]
        .iter()
        .any(|name| media(headers).eq_ignore_ascii_case(name))
}

fn media(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// What the Content-Type says of the notation.
pub(super) fn format(headers: &HeaderMap) -> Format {
    let media = media(headers);
    if media.eq_ignore_ascii_case("text/plain") {
        Format::Text
    } else if media.eq_ignore_ascii_case("application/openmetrics-text") {
        Format::OpenMetrics
    } else {
        Format::Unsaid
    }
}

/// The first `limit` bytes of a text from upstream, with bad UTF-8 replaced.
pub(super) fn excerpt(bytes: &[u8], limit: usize) -> String {
    let text = String::from_utf8_lossy(bytes);
    let end = (0..=limit.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text[..end].trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn headers(name: hyper::header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(text).unwrap();
        packer.finish().unwrap()
    }

    fn sniff(body: &[u8]) -> Result<(), UpstreamError> {
        super::sniff(body, &Framing { vouched: true, protobuf: false })
    }

    #[test]
    fn what_is_no_text_is_told_from_text() {
        for text in [
            "",
            "a 1\n",
            "pl\u{e4}tze\ta\r\n",
            "\u{1b}[1mloading",
            &"\u{e4}".repeat(600),
            &format!("x{}", "\u{e4}".repeat(600)),
        ] {
            assert!(!is_binary(text.as_bytes()), "{text}");
        }
        // Brotli, of which curl --compressed makes "a 1\n"; a NUL; no UTF-8.
        for bytes in [&b"\x8b\x01\x80\x61\x20\x31\x0a\x03"[..], b"a\0b", b"\xff"] {
            assert!(is_binary(bytes), "{bytes:?}");
        }
        let protobuf = Framing { vouched: true, protobuf: true };
        assert_eq!(super::sniff(b"\x10\x0a\x0evllm", &protobuf), Err(UpstreamError::Protobuf));
        assert_eq!(super::sniff(b"x_total 1\n", &protobuf), Ok(()));
    }

    #[test]
    fn html_and_json_are_told_from_metrics() {
        for page in ["a 1\n", "# HELP a b\n", "\n\na 1", "{\"http.lat\",k=\"1\"} 4", "{\"a:\\\"b\"} 1", "\u{feff}a 1"] {
            assert_eq!(sniff(page.as_bytes()), Ok(()), "{page}");
        }
        for page in ["<html>", "  \n<!DOCTYPE", "{\"error\":\"loading\"}", "{ \"a\" : 1}", "{}", "[]", "{\"a"] {
            assert_eq!(sniff(page.as_bytes()).map_err(|e| e.reason()), Err("content"), "{page}");
        }
        assert_eq!(sniff(b""), Err(UpstreamError::Empty));
        assert_eq!(sniff(&gzip(b"a 1\n")), Err(UpstreamError::PackedUnsaid("gzip")));
        assert_eq!(sniff(b"\x28\xb5\x2f\xfd\x04\x00"), Err(UpstreamError::PackedUnsaid("zstd")));
        assert_eq!(sniff(b"x_total 1\n"), Ok(()));
        assert_eq!(sniff(b" \n"), Err(UpstreamError::Empty));
    }

    #[tokio::test]
    async fn gzip_is_undone_within_the_limit() {
        let packed = Bytes::from(gzip(b"a 1\n"));
        let unpacked =
            async |coding: &str, limit| unpack(&headers(CONTENT_ENCODING, coding), packed.clone(), limit).await;
        assert_eq!(unpacked("gzip", 4).await, Ok(Bytes::from_static(b"a 1\n")));
        assert_eq!(unpacked("X-GZIP", 4).await, Ok(Bytes::from_static(b"a 1\n")));
        assert_eq!(unpacked("gzip", 3).await, Err(UpstreamError::TooLarge { part: "unpacked body", limit: 3 }));
        assert_eq!(unpacked("br", 4).await.map_err(|e| e.reason()), Err("encoding"));
        assert_eq!(unpacked("identity", 4).await, Ok(packed.clone()));
    }

    #[tokio::test]
    async fn a_long_page_is_unpacked_in_pieces() {
        let page = b"x_total 1\n".repeat(100_000);
        assert_eq!(gunzip(&gzip(&page), page.len()).await, Ok(Bytes::from(page)));
    }

    #[tokio::test]
    async fn a_damaged_gzip_body_is_refused() {
        let mut packed = gzip(b"a 1\n");
        let checksum = packed.len() - 8;
        packed[checksum] ^= 1;
        assert_eq!(gunzip(&packed, 9).await.map_err(|e| e.reason()), Err("encoding"));
        assert_eq!(gunzip(&packed[..checksum], 9).await.map_err(|e| e.reason()), Err("encoding"));
    }

    #[test]
    fn the_notation_follows_the_media_type_alone() {
        let of = |value: &str| format(&headers(CONTENT_TYPE, value));
        assert_eq!(of("Text/Plain;Version=\"0.0.4\""), Format::Text);
        assert_eq!(of("application/openmetrics-text; version=1.0.0; charset=utf-8"), Format::OpenMetrics);
        assert_eq!(of("text/html; charset=utf-8"), Format::Unsaid);
        assert_eq!(format(&HeaderMap::new()), Format::Unsaid);
    }

    #[test]
    fn an_excerpt_is_short_and_of_whole_characters() {
        assert_eq!(excerpt("äöü".as_bytes(), 3), "ä");
        assert_eq!(excerpt(b"bad \xff", 200), "bad \u{fffd}");
    }
}
