//! A page of text 0.0.4 as Prometheus itself reads it, quirks included.
//!
//! Written from observation of the real one (`verdicts.rs` holds what was seen) and not from a grammar, since
//! Prometheus is no line reader: a label value may run over a line end, and a NUL byte may end the page in
//! silence. What a stricter reader would mind is noted on the way; `strict.rs` adds what only shows from the
//! page as a whole. It is slow and simple on purpose, and shares nothing with the scanner that it judges.

/// One sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Metric name.
    pub name: String,
    /// Labels by name, values decoded, empty ones left out.
    pub labels: Vec<(String, String)>,
    /// Value.
    pub value: f64,
    /// Timestamp in milliseconds.
    pub timestamp: Option<i64>,
    /// 1-based line that it starts on.
    pub line: usize,
}

/// What one entry of a page is.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// `# HELP`: name and text as written.
    Help { name: String, text: String, line: usize },
    /// `# TYPE`: name and type.
    Type { name: String, kind: String, line: usize },
    /// A sample.
    Sample(Sample),
}

/// A line and what is wrong there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// 1-based line.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// What came out of a page.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Everything up to the refusal, or all of it.
    pub entries: Vec<Entry>,
    /// Why Prometheus refuses the page as a whole.
    pub refusal: Option<Remark>,
    /// Prometheus takes it; a stricter reader would not.
    pub oddities: Vec<Remark>,
}

/// Reads a page.
pub fn read(body: &[u8]) -> Reading {
    let mut reader = Reader { lexer: Lexer::new(body), from: 0, counted: (0, 1), reading: Reading::default() };
    loop {
        reader.from = reader.lexer.at;
        match reader.entry() {
            Ok(Some(entry)) => reader.reading.entries.extend(entry),
            Ok(None) => break,
            Err(what) => {
                let line = reader.line();
                reader.reading.refusal = Some(Remark { line, what });
                break;
            }
        }
    }
    if reader.reading.refusal.is_none() && reader.lexer.at < body.len() {
        reader.odd("a NUL byte ends the page before its end");
    }
    reader.reading
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Start,
    Comment,
    MetaName,
    MetaText,
    Labels,
    LabelValue,
    Value,
    Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    End,
    LineEnd,
    Blank,
    Help,
    Type,
    Comment,
    Name,
    Text,
    Open,
    Close,
    LabelName,
    LabelValue,
    Equal,
    Comma,
    Value,
    Timestamp,
    Invalid,
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn starts_label(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

fn starts_name(byte: u8) -> bool {
    starts_label(byte) || byte == b':'
}

/// Cuts the page into tokens. What a byte means depends on the state that the token before it left.
struct Lexer {
    /// The page and one more line end: Prometheus adds it too.
    bytes: Vec<u8>,
    start: usize,
    at: usize,
    state: State,
}

impl Lexer {
    fn new(body: &[u8]) -> Lexer {
        Lexer { bytes: [body, b"\n"].concat(), start: 0, at: 0, state: State::Start }
    }

    fn here(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    /// One byte on. NUL bytes are stepped over where text may hold any byte.
    fn step(&mut self) -> u8 {
        self.at += 1;
        if matches!(self.state, State::LabelValue | State::MetaText | State::Comment) {
            while self.at < self.bytes.len() && self.bytes[self.at] == 0 {
                self.at += 1;
            }
        }
        self.here()
    }

    fn step_while(&mut self, wanted: impl Fn(u8) -> bool) {
        while self.at < self.bytes.len() && wanted(self.here()) {
            self.step();
        }
    }

    fn text(&self) -> &[u8] {
        &self.bytes[self.start..self.at]
    }

    /// The next token that is not blank.
    fn token(&mut self) -> Token {
        loop {
            self.start = self.at;
            if self.at >= self.bytes.len() {
                return Token::End;
            }
            let token = self.raw_token();
            if token != Token::Blank {
                return token;
            }
        }
    }

    fn raw_token(&mut self) -> Token {
        if self.state == State::MetaText {
            return self.meta_text();
        }
        if is_blank(self.here()) {
            self.step_while(is_blank);
            return Token::Blank;
        }
        match self.state {
            State::Start => self.start_token(),
            State::Comment | State::MetaText => self.comment(),
            State::MetaName => self.word(starts_name, State::MetaText, Token::Name),
            State::Labels => self.labels_token(),
            State::LabelValue => self.quoted(),
            State::Value => self.value_token(),
            State::Timestamp => self.timestamp_token(),
        }
    }

    fn single(&mut self, then: State, token: Token) -> Token {
        self.step();
        self.state = then;
        token
    }

    fn word(&mut self, starts: fn(u8) -> bool, then: State, token: Token) -> Token {
        if !starts(self.here()) {
            return Token::Invalid;
        }
        self.step_while(|byte| starts(byte) || byte.is_ascii_digit());
        self.state = then;
        token
    }

    fn start_token(&mut self) -> Token {
        match self.here() {
            0 => Token::End,
            b'\n' => self.single(State::Start, Token::LineEnd),
            b'#' => {
                self.step();
                if !is_blank(self.here()) {
                    return self.rest_of_comment();
                }
                self.step_while(is_blank);
                self.state = State::Comment;
                self.comment()
            }
            _ => self.word(starts_name, State::Value, Token::Name),
        }
    }

    fn comment(&mut self) -> Token {
        let (word, token) = if self.here() == b'T' { (b"TYPE", Token::Type) } else { (b"HELP", Token::Help) };
        for byte in word {
            if self.here() != *byte {
                return self.rest_of_comment();
            }
            self.step();
        }
        if !is_blank(self.here()) {
            return self.rest_of_comment();
        }
        self.step_while(is_blank);
        self.state = State::MetaName;
        token
    }

    fn rest_of_comment(&mut self) -> Token {
        loop {
            match self.here() {
                0 => return Token::End,
                b'\n' => break,
                _ => self.step(),
            };
        }
        self.state = State::Start;
        Token::Comment
    }

    fn meta_text(&mut self) -> Token {
        let mut only_blanks = is_blank(self.here());
        while !matches!(self.here(), 0 | b'\n') {
            only_blanks &= is_blank(self.here());
            self.step();
        }
        if only_blanks {
            return Token::Blank;
        }
        self.state = State::Start;
        Token::Text
    }

    fn labels_token(&mut self) -> Token {
        match self.here() {
            b'}' => self.single(State::Value, Token::Close),
            b'=' => self.single(State::LabelValue, Token::Equal),
            b',' => self.single(State::Labels, Token::Comma),
            _ => self.word(starts_label, State::Labels, Token::LabelName),
        }
    }

    fn quoted(&mut self) -> Token {
        if self.here() != b'"' {
            return Token::Invalid;
        }
        loop {
            match self.step() {
                0 => return Token::Invalid,
                b'"' => return self.single(State::Labels, Token::LabelValue),
                b'\\' if matches!(self.step(), 0 | b'\n') => return Token::Invalid,
                _ => {}
            }
        }
    }

    fn value_token(&mut self) -> Token {
        match self.here() {
            b'{' => self.single(State::Labels, Token::Open),
            0 | b'\n' => Token::Invalid,
            _ => {
                self.step_while(|byte| !matches!(byte, 0 | b'{' | b' ' | b'\t' | b'\n'));
                self.state = State::Timestamp;
                Token::Value
            }
        }
    }

    fn timestamp_token(&mut self) -> Token {
        match self.here() {
            b'\n' => self.single(State::Start, Token::LineEnd),
            byte if byte.is_ascii_digit() => {
                self.step_while(|byte| byte.is_ascii_digit());
                Token::Timestamp
            }
            _ => Token::Invalid,
        }
    }
}

type Labels = Vec<(String, String)>;

struct Reader {
    lexer: Lexer,
    /// Where the entry begins, its leading blanks included.
    from: usize,
    /// A place up to which lines were counted, and the line there.
    counted: (usize, usize),
    reading: Reading,
}

impl Reader {
    fn line(&mut self) -> usize {
        let (from, line) = self.counted;
        let upto = self.lexer.start.clamp(from, self.lexer.bytes.len());
        let ends = self.lexer.bytes[from..upto].iter().filter(|byte| **byte == b'\n').count();
        self.counted = (upto, line + ends);
        line + ends
    }

    fn odd(&mut self, what: impl Into<String>) {
        let line = self.line();
        self.reading.oddities.push(Remark { line, what: what.into() });
    }

    fn expect(&mut self, wanted: Token, after: &str) -> Result<(), String> {
        match self.lexer.token() {
            token if token == wanted => Ok(()),
            token => Err(format!("{token:?} where {wanted:?} should follow {after}")),
        }
    }

    /// One entry; `Some(None)` is a line that says nothing, `None` the end.
    fn entry(&mut self) -> Result<Option<Option<Entry>>, String> {
        match self.lexer.token() {
            Token::End => Ok(None),
            Token::LineEnd => Ok(Some(None)),
            Token::Comment => self.expect(Token::LineEnd, "a comment").map(|()| Some(None)),
            Token::Help => self.help().map(|entry| Some(Some(entry))),
            Token::Type => self.kind().map(|entry| Some(Some(entry))),
            Token::Name => self.sample().map(|sample| Some(Some(Entry::Sample(sample)))),
            token => Err(format!("{token:?} cannot start a line")),
        }
    }

    fn help(&mut self) -> Result<Entry, String> {
        let line = self.line();
        let (name, text) = self.metadata()?;
        let text = String::from_utf8(text).map_err(|_| "HELP is not UTF-8".to_owned())?;
        self.expect(Token::LineEnd, "HELP")?;
        Ok(Entry::Help { name, text, line })
    }

    fn kind(&mut self) -> Result<Entry, String> {
        let line = self.line();
        let (name, text) = self.metadata()?;
        let kind = String::from_utf8_lossy(&text).into_owned();
        if !["counter", "gauge", "histogram", "summary", "untyped"].contains(&kind.as_str()) {
            return Err(format!("{kind:?} is no type"));
        }
        self.expect(Token::LineEnd, "TYPE")?;
        Ok(Entry::Type { name, kind, line })
    }

    /// Name and text of HELP or TYPE. The byte between them is thrown away, whatever it is.
    fn metadata(&mut self) -> Result<(String, Vec<u8>), String> {
        self.expect(Token::Name, "HELP or TYPE")?;
        let name = String::from_utf8_lossy(self.lexer.text()).into_owned();
        self.expect(Token::Text, "the name of HELP or TYPE")?;
        let text = self.lexer.text().to_vec();
        if text.first().is_some_and(|byte| !is_blank(*byte)) {
            self.odd(format!("no blank behind the name {name}"));
        }
        if text.contains(&0) {
            self.odd("NUL byte in HELP");
        }
        Ok((name, text.get(1..).unwrap_or_default().to_vec()))
    }

    fn sample(&mut self) -> Result<Sample, String> {
        let line = self.line();
        let blank_first = is_blank(self.lexer.bytes[self.from]);
        let name = String::from_utf8_lossy(self.lexer.text()).into_owned();
        let mut written = Labels::new();
        let mut token = self.lexer.token();
        if token == Token::Open {
            written = self.labels()?;
            token = self.lexer.token();
        }
        if token != Token::Value {
            return Err(format!("{token:?} where the value should be"));
        }
        let value = self.value()?;
        let timestamp = self.timestamp()?;
        if blank_first {
            return Err("blank before the name".to_owned());
        }
        Ok(Sample { name, labels: settle(&written)?, value, timestamp, line })
    }

    fn labels(&mut self) -> Result<Labels, String> {
        let mut labels = Labels::new();
        let mut token = self.lexer.token();
        while token != Token::Close {
            if token != Token::LabelName {
                return Err(format!("{token:?} where a label should be"));
            }
            let name = String::from_utf8_lossy(self.lexer.text()).into_owned();
            self.expect(Token::Equal, "a label name")?;
            self.expect(Token::LabelValue, "an equals sign")?;
            labels.push((name, self.label_value()?));
            token = self.lexer.token();
            if token == Token::Comma {
                token = self.lexer.token();
            } else if token != Token::Close {
                self.odd("no comma between labels");
            }
        }
        Ok(labels)
    }

    fn label_value(&mut self) -> Result<String, String> {
        let text = self.lexer.text();
        let inner = text[1..text.len() - 1].to_vec();
        let inner = String::from_utf8(inner).map_err(|_| "label value is not UTF-8".to_owned())?;
        if inner.contains(['\0', '\n']) {
            self.odd("NUL byte or line end inside a label value");
        }
        let (value, known) = unescape(&inner);
        if !known {
            self.odd("unknown escape in a label value");
        }
        Ok(value)
    }

    fn value(&self) -> Result<f64, String> {
        let text = std::str::from_utf8(self.lexer.text()).map_err(|_| "value is not UTF-8".to_owned())?;
        let refusal = || format!("{text:?} is no number");
        let value: f64 = text.parse().map_err(|_| refusal())?;
        let in_words = text.trim_start_matches(['+', '-']).starts_with(['i', 'I', 'n', 'N']);
        let signed_nan = value.is_nan() && text.len() > 3;
        if signed_nan || (value.is_infinite() && !in_words) { Err(refusal()) } else { Ok(value) }
    }

    fn timestamp(&mut self) -> Result<Option<i64>, String> {
        match self.lexer.token() {
            Token::LineEnd => Ok(None),
            Token::Timestamp => {
                let text = String::from_utf8_lossy(self.lexer.text()).into_owned();
                let milliseconds = text.parse().map_err(|_| format!("{text} is out of range"))?;
                self.expect(Token::LineEnd, "a timestamp")?;
                Ok(Some(milliseconds))
            }
            token => Err(format!("{token:?} behind the value")),
        }
    }
}

/// Takes the three escapes out; false where there was another one, which stays as it is.
fn unescape(text: &str) -> (String, bool) {
    let mut out = String::new();
    let mut known = true;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match (char, chars.clone().next()) {
            ('\\', Some('n')) => out.push('\n'),
            ('\\', Some(next @ ('\\' | '"'))) => out.push(next),
            (other, _) => {
                known &= other != '\\';
                out.push(other);
                continue;
            }
        }
        chars.next();
    }
    (out, known)
}

/// Labels as they are kept: by name, and without every name that was given an empty value even once.
fn settle(written: &Labels) -> Result<Labels, String> {
    let emptied = |name: &str| written.iter().any(|(other, value)| other == name && value.is_empty());
    if written.iter().any(|(name, _)| name == "__name__") {
        return Err("__name__ given as a label".to_owned());
    }
    let mut labels: Labels = written.iter().filter(|(name, _)| !emptied(name)).cloned().collect();
    labels.sort();
    match labels.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) => Err(format!("label {} twice", pair[0].0)),
        None => Ok(labels),
    }
}
