//! msgpack, walked over. Pure and total.
//!
//! The reader is our own because it steps over what is not wanted without making a value of it: what it skips of an event
//! is prompt content. What the values mean is [`super::wire`]'s.

/// Why bytes are no batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end in the middle of something.
    #[error("the batch ends too early")]
    Truncated,
    /// Something else stands where this was expected.
    #[error("the batch has no {0} where one belongs")]
    Missing(&'static str),
    /// What it says takes more memory than there is for it.
    #[error(
        "a batch of more than {0} hashes and events is larger than what is held for one: give more --events.max-bytes"
    )]
    TooMuch(usize),
}

/// One msgpack value, or the head of one that holds others.
pub(super) enum Token<'a> {
    Nil,
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Binary(&'a [u8]),
    Array(usize),
    Map(usize),
    /// A flag, or a value of an application's own type.
    Opaque,
}

impl Token<'_> {
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Token::Unsigned(value) => Some(*value as f64),
            Token::Negative(value) => Some(*value as f64),
            Token::Float(value) => Some(*value),
            _ => None,
        }
    }

    pub(super) fn small(&self) -> Option<u32> {
        match self {
            Token::Unsigned(value) => u32::try_from(*value).ok(),
            _ => None,
        }
    }
}

/// What is left of the payload.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, left) = self.0.split_at_checked(count).ok_or(Malformed::Truncated)?;
        self.0 = left;
        Ok(taken)
    }

    /// A big-endian integer of so many bytes.
    fn unsigned(&mut self, width: usize) -> Result<u64, Malformed> {
        Ok(self.take(width)?.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn length(&mut self, width: usize) -> Result<usize, Malformed> {
        usize::try_from(self.unsigned(width)?).map_err(|_| Malformed::Truncated)
    }

    pub(super) fn token(&mut self) -> Result<Token<'a>, Malformed> {
        let marker = self.take(1)?[0];
        // The widths of a family of markers are 1, 2, 4, 8 bytes in this order.
        let width = |first: u8| 1_usize << (marker - first);
        Ok(match marker {
            0x00..=0x7f => Token::Unsigned(u64::from(marker)),
            0xe0..=0xff => Token::Negative(i64::from(marker.cast_signed())),
            0x80..=0x8f => Token::Map(usize::from(marker & 0x0f)),
            0x90..=0x9f => Token::Array(usize::from(marker & 0x0f)),
            0xa0..=0xbf => Token::Text(self.take(usize::from(marker & 0x1f))?),
            0xc0 => Token::Nil,
            0xc1 => return Err(Malformed::Missing("msgpack value")),
            0xc2 | 0xc3 => Token::Opaque,
            0xc4..=0xc6 => Token::Binary(self.sized(width(0xc4))?),
            0xc7..=0xc9 => self.opaque_sized(width(0xc7))?,
            0xca => Token::Float(f64::from(f32::from_bits(self.unsigned(4)? as u32))),
            0xcb => Token::Float(f64::from_bits(self.unsigned(8)?)),
            0xcc..=0xcf => Token::Unsigned(self.unsigned(width(0xcc))?),
            0xd0..=0xd3 => self.signed(width(0xd0))?,
            0xd4..=0xd8 => self.opaque(width(0xd4))?,
            0xd9..=0xdb => Token::Text(self.sized(width(0xd9))?),
            0xdc | 0xdd => Token::Array(self.length(2 * width(0xdc))?),
            0xde | 0xdf => Token::Map(self.length(2 * width(0xde))?),
        })
    }

    fn sized(&mut self, width: usize) -> Result<&'a [u8], Malformed> {
        let length = self.length(width)?;
        self.take(length)
    }

    fn signed(&mut self, width: usize) -> Result<Token<'a>, Malformed> {
        let shift = 64 - 8 * width;
        let value = (self.unsigned(width)? << shift).cast_signed() >> shift;
        Ok(if value < 0 { Token::Negative(value) } else { Token::Unsigned(value.cast_unsigned()) })
    }

    /// An application's own type: one byte for which, then its content.
    fn opaque(&mut self, length: usize) -> Result<Token<'a>, Malformed> {
        self.take(1)?;
        self.take(length)?;
        Ok(Token::Opaque)
    }

    fn opaque_sized(&mut self, width: usize) -> Result<Token<'a>, Malformed> {
        let length = self.length(width)?;
        self.opaque(length)
    }

    pub(super) fn array(&mut self, what: &'static str) -> Result<usize, Malformed> {
        match self.token()? {
            Token::Array(count) => Ok(count),
            _ => Err(Malformed::Missing(what)),
        }
    }

    /// Walks over one value, however deep. Each step takes a byte at least, so what the bytes claim costs nothing.
    pub(super) fn skip(&mut self) -> Result<(), Malformed> {
        let token = self.token()?;
        self.skip_rest_of(&token)
    }

    pub(super) fn skip_rest_of(&mut self, head: &Token<'_>) -> Result<(), Malformed> {
        let held = |token: &Token<'_>| match token {
            Token::Array(count) => *count,
            Token::Map(count) => count.saturating_mul(2),
            _ => 0,
        };
        let mut left = held(head);
        while left > 0 {
            left = (left - 1).saturating_add(held(&self.token()?));
        }
        Ok(())
    }
}
