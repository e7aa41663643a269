//! Tests of addresses.

use super::*;

fn parse(text: &str) -> Result<IscsiUrl, UrlError> {
    IscsiUrl::parse_with(text, |_| None)
}

fn account_of(user: &str, secret: &str) -> Option<ChapAccount> {
    Some(account(user, secret).unwrap())
}

#[test]
fn a_whole_address_comes_apart() {
    let url = parse(
        "iscsi://joe%s3cret%41@192.0.2.10:3261/iqn.2004-01.org.example%3Adisk/7?header_digest=CRC32C\
         &data_digest=none&initiator=iqn.2004-01.org.example:me&from=192.0.2.20&command_timeout=10s\
         &replacement_timeout=2m&keep_unflushed=8M",
    )
    .unwrap();
    assert_eq!((url.host.as_str(), url.port, url.lun), ("192.0.2.10", 3261, Some(7)));
    assert_eq!(url.target.as_deref(), Some("iqn.2004-01.org.example:disk"));
    assert_eq!(url.account, account_of("joe", "s3cret%41"), "nothing is decoded behind the separator");
    assert!(url.header_digest && !url.data_digest);
    assert_eq!(url.initiator.as_deref(), Some("iqn.2004-01.org.example:me"));
    assert_eq!(url.from, Some("192.0.2.20".parse().unwrap()));
    let (ten, two) = (Duration::from_secs(10), Duration::from_secs(120));
    assert_eq!((url.command_timeout, url.replacement_timeout), (Some(ten), Some(two)));
    assert_eq!(url.keep_unflushed, Some(8 << 20));
    assert_eq!(parse("iscsi://192.0.2.10?keep_unflushed=0").unwrap().keep_unflushed, Some(0));
    assert!(matches!(parse("iscsi://192.0.2.10?keep_unflushed=x"), Err(UrlError::KeepUnflushed { .. })));
    assert_eq!(url.to_string(), "iscsi://joe@192.0.2.10:3261/iqn.2004-01.org.example:disk/7");
}

#[test]
fn a_portal_or_a_target_is_enough_for_listing() {
    for text in ["iscsi://host", "iscsi://host/", "ISCSI://host:3260"] {
        let url = parse(text).unwrap();
        assert_eq!((url.portal().as_str(), &url.target, url.lun), ("host:3260", &None, None));
    }
    let url = parse("iscsi://host/iqn.2004-01.org.example:disk/").unwrap();
    assert_eq!((url.target.is_some(), url.lun), (true, None));
}

#[test]
fn ipv6_hosts_stand_in_brackets() {
    let url = parse("iscsi://u%p@[2001:db8::1]:99/iqn.x:y/0").unwrap();
    assert_eq!((url.host.as_str(), url.port), ("2001:db8::1", 99));
    assert_eq!(url.portal(), "[2001:db8::1]:99");
    assert_eq!(parse("iscsi://[::1]/").unwrap().port, DEFAULT_PORT);
    assert!(matches!(parse("iscsi://2001:db8::1/iqn.x:y/0"), Err(UrlError::Host(_))));
    for bad in ["iscsi://[::1", "iscsi://[host]:1", "iscsi://[::1]3260"] {
        assert!(matches!(parse(bad), Err(UrlError::Bracket(_))), "{bad}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let target = "iqn.x:y";
    assert_eq!(parse("nbd://host"), Err(UrlError::Scheme));
    assert_eq!(parse("iscsi:/"), Err(UrlError::Scheme));
    assert_eq!(parse("iscsi:///iqn.x:y/0"), Err(UrlError::NoHost));
    assert_eq!(parse("iscsi://h:0"), Err(UrlError::Port("0".into())));
    assert_eq!(parse("iscsi://h:65536"), Err(UrlError::Port("65536".into())));
    assert_eq!(parse("iscsi://h/disk/0"), Err(UrlError::Name("disk".into())));
    assert_eq!(parse("iscsi://h/iqn.x%0Ay/0"), Err(UrlError::Name("iqn.x\ny".into())));
    assert_eq!(parse("iscsi://h/iqn.x%zz/0"), Err(UrlError::Percent("the target")));
    assert_eq!(parse(&format!("iscsi://h/{target}/16384")), Err(UrlError::Lun("16384".into())));
    assert_eq!(parse(&format!("iscsi://h/{target}/x")), Err(UrlError::Lun("x".into())));
    assert_eq!(parse(&format!("iscsi://h/{target}/0/1")), Err(UrlError::TooLong("1".into())));
    assert_eq!(parse("iscsi://h?colour=red"), Err(UrlError::Key("colour".into())));
    assert_eq!(parse("iscsi://h?from=here"), Err(UrlError::From("here".into())));
    assert!(matches!(parse("iscsi://h?data_digest=md5"), Err(UrlError::Digest { .. })));
    for time in ["command_timeout=0s", "command_timeout=5", "replacement_timeout=25h"] {
        assert!(matches!(parse(&format!("iscsi://h?{time}")), Err(UrlError::Timer { .. })), "{time}");
    }
    assert_eq!(parse("iscsi://u@h"), Err(UrlError::NoSecret("u".into())));
    let said = parse("iscsi://alice:swordfish@h").unwrap_err().to_string();
    assert!(said.contains("user `alice`") && !said.contains("swordfish"), "{said}");
    assert_eq!(parse("iscsi://%s@h"), Err(UrlError::NoUser));
    assert!(matches!(parse("iscsi://u%@h"), Err(UrlError::Secret { .. })));
    assert!(parse("iscsi://é/").is_ok() && parse("iscsié//h").is_err());
}

#[test]
fn the_secret_comes_from_the_address_then_the_file_then_the_environment() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    std::io::Write::write_all(&mut file, b"from the file\n\n").unwrap();
    let path = file.path().to_str().unwrap();
    let environment = |name: &str| (name == SECRET_VARIABLE).then(|| "from outside".to_owned());

    let url = IscsiUrl::parse_with(&format!("iscsi://u%inside@h?secret_file={path}"), environment).unwrap();
    assert_eq!(url.account, account_of("u", "inside"));
    let url = IscsiUrl::parse_with(&format!("iscsi://u@h?secret_file={path}"), environment).unwrap();
    assert_eq!(url.account, account_of("u", "from the file"));
    let url = IscsiUrl::parse_with("iscsi://u@h", environment).unwrap();
    assert_eq!(url.account, account_of("u", "from outside"));
    assert_eq!(IscsiUrl::parse_with("iscsi://h", environment).unwrap().account, None);

    std::fs::write(path, "from the file\nand another line\n").unwrap();
    let several = parse(&format!("iscsi://u@h?secret_file={path}")).unwrap_err().to_string();
    assert!(several.contains("it has several lines") && !several.contains("another"), "{several}");
    let missing = parse("iscsi://u@h?secret_file=/nonexistent/secret").unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/secret"), "{missing}");
}

#[test]
fn mutual_chap_takes_both_halves_with_different_secrets() {
    let url = parse("iscsi://u%one@h?target_user=t&target_password=two").unwrap();
    assert_eq!(url.target_account, account_of("t", "two"));
    assert_eq!(parse("iscsi://h?target_user=t&target_password=two"), Err(UrlError::Mutual));
    assert_eq!(parse("iscsi://u%one@h?target_user=t"), Err(UrlError::Mutual));
    assert_eq!(parse("iscsi://u%one@h?target_password=two"), Err(UrlError::Mutual));
    assert_eq!(parse("iscsi://u%same@h?target_user=t&target_password=same"), Err(UrlError::SameSecret));
}

#[test]
fn no_text_shows_a_secret() {
    let url = parse("iscsi://u%hunter2@h/iqn.x:y/0?target_user=t&target_password=swordfish").unwrap();
    for text in [url.to_string(), format!("{url:?}"), format!("{url:#?}")] {
        assert!(!text.contains("hunter2") && !text.contains("swordfish"), "{text}");
    }
    for bad in [
        "iscsi://u%hunter2@h:x/iqn.x:y/0",
        "iscsi://u%hunter2@/iqn.x:y/0",
        "iscsi://u%hunter2/iqn.x:y/0",
        "iscsi://u%hunter2/x@h/iqn.x:y/0",
        "iscsi://u%hunter2@h/iqn.x:y/zero",
        "iscsi://u%hunter2@h?target_user=t&target_password=hunter2",
        "iscsi://u%hunter2@h?target_password:hunter2",
        "iscsi://u%hunter2@h?target_password=%zzhunter2",
        "iscsi://u@h?target_password=hunter2",
    ] {
        let error = parse(bad).unwrap_err();
        let texts = [error.to_string(), format!("{error:?}")];
        assert!(texts.iter().all(|text| !text.contains("hunter2")), "{texts:?}");
    }
}
