//! XML that a store answers with: pages of a listing, and errors.
//!
//! Only elements and text are read; entities are the five of XML and characters by number, so that nothing expands.

use quick_xml::Reader;
use quick_xml::events::Event;

/// Nesting of elements that is followed: a listing has three.
const DEPTH_MAX: usize = 16;

/// Keys and folders behind a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Keys, whole.
    pub keys: Vec<String>,
    /// Beginnings of keys, up to and with a slash, that stand for all keys with that beginning.
    pub folders: Vec<String>,
}

/// A page of a listing (`ListObjectsV2`).
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) listing: Listing,
    /// What asks for the next page.
    pub(crate) next: Option<String>,
}

/// Why a store refused something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// `NoSuchKey`, `SlowDown` …; empty where the body says nothing.
    pub(crate) code: String,
    pub(crate) message: String,
}

/// Calls `each` with the names of the elements around each text, and the text.
fn texts(xml: &str, mut each: impl FnMut(&[String], String)) -> Result<(), String> {
    let mut reader = Reader::from_str(xml);
    let mut path: Vec<String> = Vec::new();
    let mut text = String::new();
    loop {
        match reader.read_event().map_err(|error| error.to_string())? {
            Event::Start(start) => {
                if path.len() == DEPTH_MAX {
                    return Err("its elements are nested too deep".to_owned());
                }
                path.push(start.local_name().as_ref().to_owned());
                text.clear();
            }
            Event::Empty(start) => {
                path.push(start.local_name().as_ref().to_owned());
                each(&path, String::new());
                path.pop();
            }
            Event::Text(part) => text.push_str(&part.xml10_content()),
            Event::CData(part) => text.push_str(&part.xml10_content()),
            Event::GeneralRef(name) => text.push(match &*name {
                "lt" => '<',
                "gt" => '>',
                "amp" => '&',
                "apos" => '\'',
                "quot" => '"',
                other => match name.resolve_char_ref().map_err(|error| error.to_string())? {
                    Some(char) => char,
                    None => return Err(format!("it has an entity of its own, `{other}`")),
                },
            }),
            Event::End(_) => {
                each(&path, std::mem::take(&mut text));
                path.pop();
            }
            Event::Eof if path.is_empty() => return Ok(()),
            Event::Eof => return Err("it ends before its end".to_owned()),
            Event::Decl(_) | Event::PI(_) | Event::Comment(_) | Event::DocType(_) => {}
        }
    }
}

/// Reads a page of a listing.
pub(crate) fn page(xml: &str) -> Result<Page, String> {
    let (mut page, mut is_listing, mut is_truncated) = (Page::default(), false, false);
    texts(xml, |path, text| match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["ListBucketResult", "Contents", "Key"] => page.listing.keys.push(text),
        ["ListBucketResult", "CommonPrefixes", "Prefix"] => page.listing.folders.push(text),
        ["ListBucketResult", "IsTruncated"] => is_truncated = text.trim() == "true",
        ["ListBucketResult", "NextContinuationToken"] => page.next = Some(text),
        ["ListBucketResult"] => is_listing = true,
        _ => {}
    })?;
    if !is_listing {
        return Err("it is no listing".to_owned());
    }
    if is_truncated && page.next.is_none() {
        return Err("it is a part of a listing, and does not say how to ask for the rest".to_owned());
    }
    if !is_truncated {
        page.next = None;
    }
    Ok(page)
}

/// Reads an error. What is none says nothing.
pub(crate) fn refusal(xml: &str) -> Refusal {
    let mut refusal = Refusal::default();
    let read = texts(xml, |path, text| match path.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["Error", "Code"] => refusal.code = text,
        ["Error", "Message"] => refusal.message = text,
        _ => {}
    });
    let is_word = |code: &str| code.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
    match read {
        Ok(()) if is_word(&refusal.code) => refusal,
        _ => Refusal::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_whatever_else_they_have() {
        let xml = "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                   <Name>b</Name><Prefix>p/</Prefix><IsTruncated>true</IsTruncated>\
                   <NextContinuationToken>1/a&amp;b=</NextContinuationToken>\
                   <Contents><Key>p/a&lt;&#x41;</Key><Size>3</Size><Owner><ID>x</ID></Owner></Contents>\
                   <Contents><Key><![CDATA[p/<c>]]></Key></Contents>\
                   <CommonPrefixes><Prefix>p/d/</Prefix></CommonPrefixes></ListBucketResult>";
        let page = page(xml).unwrap();
        assert_eq!(page.listing.keys, ["p/a<A", "p/<c>"]);
        assert_eq!((page.listing.folders, page.next.as_deref()), (vec!["p/d/".to_owned()], Some("1/a&b=")));
        let empty =
            super::page("<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>").unwrap();
        assert_eq!(empty, Page::default());
    }

    #[test]
    fn what_is_no_listing_is_refused_and_nothing_expands() {
        let bomb = "<!DOCTYPE a [<!ENTITY l \"lol\"><!ENTITY m \"&l;&l;&l;&l;\">]><ListBucketResult><Contents><Key>&m;\
                    </Key></Contents></ListBucketResult>";
        let deep = "<a>".repeat(100_000);
        for (xml, why) in [
            (bomb, "an entity of its own, `m`"),
            (&deep, "too deep"),
            ("<ListBucketResult><Contents><Key>a", "before its end"),
            ("<html>not found</html>", "no listing"),
            ("", "no listing"),
            ("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>", "how to ask"),
            ("<ListBucketResult></Contents></ListBucketResult>", ""),
        ] {
            let said = page(xml).unwrap_err();
            assert!(said.contains(why), "{xml:.60}: {said}");
        }
    }

    #[test]
    fn an_error_has_a_code_and_a_page_for_people_has_none() {
        let xml = "<Error><Code>NoSuchKey</Code><Message>gone</Message></Error>";
        let expected = Refusal { code: "NoSuchKey".into(), message: "gone".into() };
        assert_eq!(refusal(xml), expected);
        for xml in
            ["<html><h1>404</h1></html>", "", "<Error><Code>NoSuchKey", "<Error><Code>a b</Code></Error>"]
        {
            assert_eq!(refusal(xml).code, "", "{xml}");
        }
    }
}
