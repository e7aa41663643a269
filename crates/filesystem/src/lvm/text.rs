//! The text of a volume group: sections, keys with numbers, strings and lists (`lib/config` of LVM2).

/// The deepest nesting: group, volumes, volume, segment, list.
const DEEPEST: usize = 8;

/// A value.
#[derive(Debug)]
pub(super) enum Item {
    Text(String),
    Number(u64),
    List(Vec<Self>),
    Section(Section),
    /// A number that is none of ours: negative, or with a point.
    Other,
}

/// Keys with their values, in order.
#[derive(Debug, Default)]
pub(super) struct Section(Vec<(String, Item)>);

impl Section {
    fn get(&self, key: &str) -> Option<&Item> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, item)| item)
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        if let Some(Item::Text(text)) = self.get(key) { Some(text) } else { None }
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        if let Some(Item::Number(number)) = self.get(key) { Some(*number) } else { None }
    }

    pub(super) fn section(&self, key: &str) -> Option<&Self> {
        if let Some(Item::Section(section)) = self.get(key) { Some(section) } else { None }
    }

    /// The sections in it, and their names.
    pub(super) fn sections(&self) -> impl Iterator<Item = (&str, &Self)> {
        self.0.iter().filter_map(|(name, item)| match item {
            Item::Section(section) => Some((name.as_str(), section)),
            _ => None,
        })
    }

    /// The lists in it.
    pub(super) fn lists(&self) -> impl Iterator<Item = &[Item]> {
        self.0
            .iter()
            .filter_map(|(_, item)| if let Item::List(list) = item { Some(list.as_slice()) } else { None })
    }

    /// All strings in it, those in lists too.
    pub(super) fn strings(&self) -> impl Iterator<Item = &str> {
        let own = self.0.iter().map(|(_, item)| item);
        own.chain(self.lists().flatten())
            .filter_map(|item| if let Item::Text(text) = item { Some(text.as_str()) } else { None })
    }

    /// Returns `true` if a list has a string.
    pub(super) fn mentions(&self, key: &str, word: &str) -> bool {
        let is = |item: &Item| matches!(item, Item::Text(text) if text == word);
        matches!(self.get(key), Some(Item::List(list)) if list.iter().any(is))
    }

    /// Returns `true` if a list has only these strings; a list that is not there has none.
    pub(super) fn only(&self, key: &str, words: &[&str]) -> bool {
        let known = |item: &Item| matches!(item, Item::Text(text) if words.contains(&text.as_str()));
        match self.get(key) {
            None => true,
            Some(Item::List(list)) => list.iter().all(known),
            Some(item) => known(item),
        }
    }
}

/// Parses a text, up to its first zero byte. `None`: it is not one.
pub(super) fn parse(text: &[u8]) -> Option<Section> {
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
    let mut parser = Parser { rest: &text[..end] };
    let section = parser.section(0)?;
    parser.rest.is_empty().then_some(section)
}

struct Parser<'a> {
    rest: &'a [u8],
}

impl Parser<'_> {
    /// Returns the next byte, behind blanks and comments.
    fn next(&mut self) -> Option<u8> {
        loop {
            self.rest = self.rest.trim_ascii_start();
            let first = *self.rest.first()?;
            if first != b'#' {
                return Some(first);
            }
            let end = self.rest.iter().position(|byte| *byte == b'\n').unwrap_or(self.rest.len());
            self.rest = &self.rest[end..];
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then(|| self.rest = &self.rest[1..])
    }

    /// A word: a key, or a number.
    fn word(&mut self) -> Option<String> {
        self.next()?;
        let is_end = |byte: &u8| byte.is_ascii_whitespace() || b"={}[],#\"".contains(byte);
        let end = self.rest.iter().position(is_end).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!word.is_empty()).then(|| String::from_utf8_lossy(word).into_owned())
    }

    /// Keys up to the brace that closes the section, or the end of the text.
    fn section(&mut self, depth: usize) -> Option<Section> {
        let mut section = Section::default();
        while let Some(first) = self.next() {
            if first == b'}' {
                break;
            }
            let key = self.word()?;
            // A key twice would be one of two truths.
            if section.get(&key).is_some() {
                return None;
            }
            let item = match self.next()? {
                b'{' if depth < DEEPEST => {
                    self.take(b'{')?;
                    let inner = self.section(depth + 1)?;
                    self.take(b'}')?;
                    Item::Section(inner)
                }
                b'=' => {
                    self.take(b'=')?;
                    self.item()?
                }
                _ => return None,
            };
            section.0.push((key, item));
        }
        Some(section)
    }

    fn item(&mut self) -> Option<Item> {
        if self.next()? != b'[' {
            return self.scalar();
        }
        self.take(b'[')?;
        let mut list = Vec::new();
        while self.next()? != b']' {
            list.push(self.scalar()?);
            if self.next()? == b',' {
                self.take(b',')?;
            }
        }
        self.take(b']')?;
        Some(Item::List(list))
    }

    fn scalar(&mut self) -> Option<Item> {
        if self.next()? != b'"' {
            let word = self.word()?;
            return Some(word.parse().map_or(Item::Other, Item::Number));
        }
        self.take(b'"')?;
        let mut text = Vec::new();
        loop {
            let (first, rest) = self.rest.split_first()?;
            self.rest = rest;
            match first {
                b'"' => break,
                b'\\' => {
                    let (escaped, rest) = rest.split_first()?;
                    self.rest = rest;
                    text.push(*escaped);
                }
                byte => text.push(*byte),
            }
        }
        Some(Item::Text(String::from_utf8_lossy(&text).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_sections_keys_strings_numbers_and_lists() {
        let text = "# a comment\nvg {\n\tid = \"a\\\"b\"\n\tseqno = 7 # behind\n\tflags = []\n\tstripes = [\n\t\"pv0\", 256\n\t]\n\
                    \tinner {\n\t\tx = -1\n\t}\n}\ncontents = \"Text\"\n\0rubbish";
        let top = parse(text.as_bytes()).unwrap();
        let group = top.section("vg").unwrap();
        assert_eq!((group.text("id"), group.number("seqno")), (Some("a\"b"), Some(7)));
        assert!(
            group.only("flags", &[]) && group.mentions("stripes", "pv0") && !group.only("stripes", &["pv0"])
        );
        assert!(matches!(group.section("inner").unwrap().get("x"), Some(Item::Other)));
        assert_eq!(group.lists().count(), 2);
        assert_eq!(top.text("contents"), Some("Text"));
    }

    #[test]
    fn what_is_no_text_is_none() {
        for text in
            ["a", "a =", "a = \"b", "a { b = 1", "a = [1", "}", "a = 1 a = 2", "a = ]", "= 1", "a = [[1]]"]
        {
            assert!(parse(text.as_bytes()).is_none(), "{text}");
        }
        assert!(parse("a {".repeat(100_000).as_bytes()).is_none());
        assert!(parse(b"").is_some());
    }
}
