# ruff: noqa: E501, S608 - a layout is one line of a table, and one of them is a dump of SQL
"""The layouts of public data sets and of shops' exports: each is read as it is meant, or refused with what to type.

All rows are made up; the layouts are those of the providers. A wrong reading that passes in silence is the one outcome
that must not be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from client_sdk.lab.data.columns import parse_columns
from client_sdk.lab.data.files import read_data_file, write_data_file
from client_sdk.lab.data.interactions import DataError
from client_sdk.lab.data.splits import load_split


@dataclass(frozen=True)
class Row:
    user: int
    item: int
    stars: int
    time: int

    @property
    def date(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)


_rng = np.random.default_rng(55)
ROWS = [
    Row(user, int(item), int(_rng.integers(1, 6)), 1_400_000_000 + 86_400 * int(_rng.integers(400)) + place)
    for user in range(3, 15)
    for place, item in enumerate(_rng.choice(np.arange(20, 60), 5, replace=False))
]

Line = Callable[[Row], str]


@dataclass(frozen=True)
class Layout:
    """The layout of a file, and what is read from it."""

    name: str
    """Data set or export."""
    header: str
    """First line; empty without one."""
    line: Line
    """Makes a line."""
    refused: str | None = None
    """A part of the error; None for a file that is read."""
    reads: str = ""
    """What is read beside user and item."""
    user: Line = lambda row: f"{row.user}"
    """The id as it is meant, as `item` is."""
    item: Line = lambda row: f"{row.item}"
    time: Callable[[Row], int] = lambda row: row.time
    rating: Callable[[Row], float] = lambda row: row.stars


def as_json(**fields: Callable[[Row], object]) -> Line:
    return lambda row: json.dumps({name: value(row) for name, value in fields.items()})


def micros(row: Row) -> int:
    return row.time * 1_000_000


def day(row: Row) -> int:
    return row.time // 86_400 * 86_400_000_000


UNNAMED = "no heading says which columns hold the user and the item"
TOLD = "--columns user=0,item=1"
AMAZON: dict[str, Line] = {"user": lambda row: f"A{row.user:013d}", "item": lambda row: f"B00{row.item:07d}"}

LAYOUTS = [
    # --- tables whose headings say what they are ---
    Layout("MovieLens ratings.csv", "userId,movieId,rating,timestamp", lambda r: f"{r.user},{r.item},{r.stars}.0,{r.time}", reads="rating time"),
    Layout("MovieLens 1M .dat", "", lambda r: f"{r.user}::{r.item}::{r.stars}::{r.time}", reads="rating time"),
    Layout("MovieTweetings .dat", "", lambda r: f"{r.user}::{r.item:07d}::{r.stars}::{r.time}", reads="rating time", item=lambda r: f"{r.item:07d}"),
    Layout("Book-Crossing", '"User-ID";"ISBN";"Book-Rating"', lambda r: f'"{r.user}";"{r.item:010d}";"{r.stars}"', reads="rating", item=lambda r: f"{r.item:010d}"),
    Layout("Anime of Kaggle", "user_id,anime_id,rating", lambda r: f"{r.user},{r.item},{r.stars}", reads="rating"),
    Layout("Netflix of Kaggle", "CustId,Rating,Date,MovieId", lambda r: f"{r.user},{r.stars},{r.date:%Y-%m-%d},{r.item}", reads="rating time", time=day),
    Layout("Amazon 2023 ratings", "user_id,parent_asin,rating,timestamp", lambda r: f"{AMAZON['user'](r)},{AMAZON['item'](r)},{r.stars}.0,{r.time}000", reads="rating time", time=lambda r: r.time * 1000, **AMAZON),
    Layout("Amazon review TSV", "marketplace\tcustomer_id\treview_id\tproduct_id\tproduct_parent\tproduct_title\tstar_rating\treview_date", lambda r: f'US\t{r.user}\tR{r.time}\tB00{r.item:07d}\t1\tA 12" vinyl\t{r.stars}\t{r.date:%Y-%m-%d}', reads="rating time", time=day, item=AMAZON["item"]),
    Layout("Yelp CSV", "user_id,business_id,stars,date", lambda r: f"u{r.user},b{r.item},{r.stars}.0,{r.date:%Y-%m-%d %H:%M:%S}", reads="rating time", time=micros, user=lambda r: f"u{r.user}", item=lambda r: f"b{r.item}"),
    Layout("RetailRocket", "timestamp,visitorid,event,itemid,transactionid", lambda r: f"{r.time}000,{r.user},view,{r.item},", reads="time", time=lambda r: r.time * 1000),
    Layout("REES46", "event_time,event_type,product_id,category_id,category_code,brand,price,user_id,user_session", lambda r: f"{r.date:%Y-%m-%d %H:%M:%S} UTC,view,{r.item},1,a.b,x,3.5,{r.user},s{r.time}", reads="time", time=micros),
    Layout("Last.fm of HetRec", "userID\tartistID\tweight", lambda r: f"{r.user}\t{r.item}\t{r.time}"),
    Layout("MovieLens of HetRec", "userID\tmovieID\trating\tdate_day\tdate_month", lambda r: f"{r.user}\t{r.item}\t{r.stars}\t1\t2", reads="rating"),
    Layout("RecBole .inter", "user_id:token\titem_id:token\trating:float\ttimestamp:float", lambda r: f"{r.user}\t{r.item}\t{r.stars}\t{r.time}.0", reads="rating time"),
    Layout("KuaiRec", "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio", lambda r: f"{r.user},{r.item},1,2,{r.date:%Y-%m-%d %H:%M:%S}.5,{r.date:%Y%m%d},{r.time}.5,1.2", reads="time"),
    Layout("Online Retail of UCI", "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country", lambda r: f"5,{r.item}A,POT,{r.stars},{r.date:%m/%d/%Y %H:%M},2.5,{r.user},UK", reads="time", time=lambda r: r.time // 60 * 60_000_000, item=lambda r: f"{r.item}A"),
    Layout("Steam of Kaggle, with header", "user_id,game_id,hours", lambda r: f"{r.user},{r.item},1.5"),
    Layout("H&M", "t_dat,customer_id,article_id,price,sales_channel_id", lambda r: f"{r.date:%Y-%m-%d},c{r.user},0{r.item},0.05,2", reads="time", time=day, user=lambda r: f"c{r.user}", item=lambda r: f"0{r.item}"),
    Layout("Food.com", "user_id,recipe_id,date,rating,review", lambda r: f'{r.user},{r.item},{r.date:%Y-%m-%d},{r.stars},"good, ""really""\nit is"', reads="rating time", time=day),
    Layout("LFM-2b", "user_id\ttrack_id\talbum_id\ttimestamp", lambda r: f"{r.user}\t{r.item}\t7\t{r.date:%Y-%m-%d %H:%M:%S}", reads="time", time=micros),
    # --- exports of shops ---
    Layout("German shop", "Kundennummer;Artikelnummer;Menge;Bestelldatum", lambda r: f"K-{r.user};A-{r.item};{r.stars};{r.date:%d.%m.%Y %H:%M}", reads="time", time=lambda r: r.time // 60 * 60_000_000, user=lambda r: f"K-{r.user}", item=lambda r: f"A-{r.item}"),
    Layout("German ratings", "Kunden-Nr.;Artikel-Nr.;Bewertung;Datum", lambda r: f"{r.user};{r.item};{r.stars},5;{r.date:%d.%m.%Y}", reads="rating time", time=day, rating=lambda r: r.stars + 0.5),
    Layout("French shop", "ID client;Référence produit;Quantité;Date commande", lambda r: f"{r.user};P{r.item};1;{r.date:%Y-%m-%d}", UNNAMED),
    Layout("French shop, plain", "id_client;ref_produit;quantite;date_commande", lambda r: f"{r.user};P{r.item};1;{r.date:%d/%m/%Y}", reads="time", time=day, item=lambda r: f"P{r.item}"),
    Layout("Shopify orders", "Name,Email,Created at,Lineitem quantity,Lineitem name,Lineitem sku", lambda r: f"#1,u{r.user}@x.org,{r.date:%Y-%m-%d %H:%M:%S} +0200,1,Pot,SKU-{r.item}", UNNAMED),
    Layout("WooCommerce", "order_id,customer_id,sku,quantity,created_at", lambda r: f"{r.time},{r.user},SKU {r.item},1,{r.date:%Y-%m-%dT%H:%M:%S}", reads="time", time=micros, item=lambda r: f"SKU {r.item}"),
    Layout("product and SKU", "customer_id,product_id,sku", lambda r: f"{r.user},{r.item},S{r.item}", "two columns look like the item, 'product_id' and 'sku'"),
    Layout("dates of either kind", "user,item,date", lambda r: f"{r.user},{r.item},0{r.stars}/0{r.user % 9 + 1}/2024", "could be day/month or month/day"),
    Layout("decimals of thousands", "user;item;rating", lambda r: f"{r.user};{r.item};{r.stars},000", "the rating is not a number: "),
    Layout("pandas index, header", ",user,item,rating", lambda r: f"{r.time},{r.user},{r.item},{r.stars}", reads="rating"),
    Layout("write.table of R", "user item rating", lambda r: f"{r.time} {r.user} {r.item} {r.stars}", "the line has 3 fields, but most lines have 4"),
    Layout("pandas headings", "0,1,2,3", lambda r: f"{r.user},{r.item},{r.stars},{r.time}", TOLD),
    # --- tables without headings ---
    Layout("MovieLens u.data", "", lambda r: f"{r.user}\t{r.item}\t{r.stars}\t{r.time}", f"{TOLD},rating=2,time=3"),
    Layout("FilmTrust", "", lambda r: f"{r.user} {r.item} {r.stars}", f"{TOLD},rating=2"),
    Layout("Amazon 2014 ratings only", "", lambda r: f"A{r.user:013d},B00{r.item:07d},{r.stars}.0,{r.time}", UNNAMED),
    Layout("Amazon 2018 ratings only: the item first", "", lambda r: f"B00{r.item:07d},A{r.user:013d},{r.stars}.0,{r.time}", UNNAMED),
    Layout("YooChoose clicks", "", lambda r: f"{r.user},{r.date:%Y-%m-%dT%H:%M:%S}.277Z,2145{r.item},0", "--columns user=0,item=2,time=1"),
    Layout("Gowalla check-ins", "", lambda r: f"{r.user}\t{r.date:%Y-%m-%dT%H:%M:%SZ}\t30.{r.time}\t-97.{r.time}\t{r.item}", "--columns user=0,item=4,time=1"),
    Layout("Last.fm 1K", "", lambda r: f"user_{r.user:06d}\t{r.date:%Y-%m-%dT%H:%M:%SZ}\ta{r.item}\tArtist\tt{r.item}\tTrack", UNNAMED),
    Layout("Last.fm 360K", "", lambda r: f"{r.user:040x}\t{r.item:036x}\tArtist {r.item}\t{r.stars}", UNNAMED),
    Layout("Taobao", "", lambda r: f"{r.user},{r.item},4{r.item % 3},pv,{r.time}", UNNAMED),
    Layout("Foursquare of TSMC", "", lambda r: f"{r.user}\tv{r.item}\tc\tBar\t40.7\t-74.0\t-240\t{r.date:%a %b %d %H:%M:%S} +0000 {r.date:%Y}", UNNAMED),
    Layout("Steam-200k", "", lambda r: f'{r.user},"Game, {r.item}",purchase,1.0,0', UNNAMED),
    Layout("Million Song triplets", "", lambda r: f"{r.user:040x}\tSO{r.item}\t{r.stars}", UNNAMED),
    Layout("time, user, item", "", lambda r: f"{r.time},{r.user},{r.item}", "--columns user=1,item=2,time=0"),
    Layout("row number in front", "", lambda r: f"{ROWS.index(r)},{r.user},{r.item},{r.stars}", "--columns user=1,item=2,rating=3"),
    Layout("movies.dat", "", lambda r: f"{r.item}::Film {r.item} (1995)::Animation|Comedy", UNNAMED),
    Layout("users.dat", "", lambda r: f"{r.user}::F::1::10::48067", UNNAMED),
    Layout("ids that say what they are", "", lambda r: f"i{r.item};u{r.user};{r.stars},5", reads="rating", rating=lambda r: r.stars + 0.5, user=lambda r: f"u{r.user}", item=lambda r: f"i{r.item}"),
    # --- JSON lines ---
    Layout("Amazon reviews", "", as_json(reviewerID=AMAZON["user"], asin=AMAZON["item"], helpful=lambda r: [0, 1], reviewText=lambda r: 'a 12" pot, "good"\n', overall=lambda r: float(r.stars), unixReviewTime=lambda r: r.time, reviewTime=lambda r: "09 13, 2009"), reads="rating time", **AMAZON),
    Layout("Amazon reviews 2023", "", as_json(rating=lambda r: r.stars, title=lambda r: "x", asin=lambda r: f"B09{r.time}", parent_asin=AMAZON["item"], user_id=AMAZON["user"], timestamp=lambda r: r.time * 1000), reads="rating time", time=lambda r: r.time * 1000, **AMAZON),
    Layout("Yelp reviews", "", as_json(review_id=lambda r: f"r{r.time}", user_id=lambda r: r.user, business_id=lambda r: r.item, stars=lambda r: r.stars, useful=lambda r: 0, date=lambda r: f"{r.date:%Y-%m-%d %H:%M:%S}"), reads="rating time", time=micros),
    Layout("Goodreads", "", as_json(user_id=lambda r: r.user, book_id=lambda r: f"{r.item}", review_id=lambda r: "x", rating=lambda r: r.stars, date_added=lambda r: f"{r.date:%a %b %d %H:%M:%S} +0000 {r.date:%Y}"), reads="rating time", time=micros),
    Layout("Google Local", "", as_json(user_id=lambda r: f"1{r.user:020d}", name=lambda r: "A", time=lambda r: r.time * 1000, rating=lambda r: r.stars, text=lambda r: None, gmap_id=lambda r: f"0x{r.item}:0x1"), reads="rating time", time=lambda r: r.time * 1000, user=lambda r: f"1{r.user:020d}", item=lambda r: f"0x{r.item}:0x1"),
    Layout("orders as JSON lines", "", as_json(order_id=lambda r: r.time, customer=lambda r: r.user, sku=lambda r: r.item), user=lambda r: f"{r.user}"),
    Layout("JSON lines of unknown names", "", as_json(who=lambda r: r.user, what=lambda r: r.item), "--columns user=who,item=what"),
    Layout("Steam reviews: lines of Python", "", lambda r: f"{{u'username': u'{r.user}', u'product_id': u'{r.item}'}}", "python -c 'import ast, json"),
    # --- more public sets ---
    Layout("Diginetica purchases", "sessionId;userId;timeframe;eventdate;ordernumber;itemId", lambda r: f"1;{r.user};9;{r.date:%Y-%m-%d};7;{r.item}", reads="time", time=day),
    Layout("Diginetica views, of nobody", "sessionId;userId;itemId;timeframe;eventdate", lambda r: f"{r.user};NA;{r.item};9;{r.date:%Y-%m-%d}", "none of the 60 rows can be read"),
    Layout("Instacart order lines", "order_id,product_id,add_to_cart_order,reordered", lambda r: f"{r.user},{r.item},{r.stars},1", "--columns user=order_id,item=product_id"),
    Layout("Instacart with users", "order_id,user_id,product_id,order_number", lambda r: f"{r.time},{r.user},{r.item},1"),
    Layout("Last.fm 360K with headings", "user_id\tartist_mbid\tartist_name\tplays", lambda r: f"{r.user:040x}\tm{r.item}\tA\t{r.stars}", "--columns user=user_id,item=artist_mbid"),
    Layout("Netflix Prize, joined", "", lambda r: f"{r.user},{r.item},{r.stars},{r.date:%Y-%m-%d}", f"{TOLD},rating=2,time=3"),
    Layout("Epinions, aligned by blanks", "", lambda r: f"  {r.user:>4}   {r.item}  {r.stars}", "make them one: sed"),
    Layout("Epinions", "", lambda r: f"{r.user} {r.item} {r.stars}", f"{TOLD},rating=2"),
    Layout("Ciao", "userID,productID,categoryID,rating,helpfulness,date", lambda r: f"{r.user},{r.item},2,{r.stars},3,{r.time}", reads="rating time"),
    Layout("CiaoDVD", "", lambda r: f"{r.user},{r.item},5,99{r.item},{r.stars},{r.date:%Y-%m-%d}", f"{TOLD},rating=4,time=5"),
    Layout("Douban reviews", "user_id\tmovie_id\trating\tlabels\tcomment\ttime", lambda r: f"{r.user}\t{r.item}\t{r.stars}\tx\tc\t{r.date:%Y-%m-%d}", reads="rating time", time=day),
    Layout("Douban of Kaggle", "ID,Movie_Name_EN,Crawl_Date,Username,Date,Star,Comment", lambda r: f"{r.time},Film {r.item},2017-01-22,u{r.user},{r.date:%Y-%m-%d},{r.stars},good", UNNAMED),
    Layout("Tmall", "user_id,item_id,cat_id,seller_id,brand_id,time_stamp,action_type", lambda r: f"{r.user},{r.item},1,2,3,{r.date:%m%d},0", reads="time", time=lambda r: int(f"{r.date:%m%d}")),
    Layout("Tmall repeat buyers", "user_id,merchant_id,label", lambda r: f"{r.user},{r.item},{r.stars % 2}", "--columns user=user_id,item=merchant_id"),
    Layout("Tianchi mobile: hours without minutes", "user_id,item_id,behavior_type,time", lambda r: f"{r.user},{r.item},1,{r.date:%Y-%m-%d %H}", "without the time, say --columns user=user_id,item=item_id"),
    Layout("Taobao advertisements", "user,time_stamp,adgroup_id,pid,nonclk,clk", lambda r: f"{r.user},{r.time},{r.item},430548_1007,1,0", "--columns user=user,item=adgroup_id,time=time_stamp"),
    Layout("Criteo", "", lambda r: f"{r.stars % 2}\t{r.user}\t{r.item}\t5\t0\t1382\t4\t15\t2\t181\t1\t68fd1e64", UNNAMED),
    Layout("Criteo attribution", "timestamp\tuid\tcampaign\tconversion\tclick", lambda r: f"{r.time}\t{r.user}\t{r.item}\t0\t{r.stars % 2}", "--columns user=uid,item=campaign"),
    Layout("Amazon 2023 with histories", "user_id,parent_asin,rating,timestamp,history", lambda r: f"{r.user},{r.item},{r.stars}.0,{r.time},B01 B02", reads="rating time"),
    Layout("Amazon fine food", "Id,ProductId,UserId,ProfileName,HelpfulnessNumerator,Score,Time,Text", lambda r: f'{r.time},{r.item},{r.user},"x, y",0,{r.stars},{r.time},"Good ""stuff"",\nagain"', reads="rating time"),
    Layout("YooChoose with headings", "session_id,timestamp,item_id,category", lambda r: f"{r.user},{r.date:%Y-%m-%dT%H:%M:%S}.123Z,{r.item},S", "--columns user=session_id,item=item_id,time=timestamp"),
    Layout("Steam recommendations", "app_id,helpful,date,is_recommended,hours,user_id", lambda r: f"{r.item},0,{r.date:%Y-%m-%d},true,36.3,{r.user}", reads="time", time=day),
    Layout("Steam recommendations, also against", "app_id,date,is_recommended,user_id", lambda r: f"{r.item},{r.date:%Y-%m-%d},{r.stars > 2},{r.user}", "the column 'is_recommended' holds false and true, and lines with false"),
    Layout("Steam library", "steamid,appid,playtime_forever", lambda r: f"{r.user},{r.item},99"),
    Layout("MIND behaviours", "", lambda r: f"{r.time}\tU{r.user}\t11/11/2019 9:05:58 AM\tN1 N{r.item}\tN2-0 N3-1", UNNAMED),
    Layout("Globo", "user_id,session_id,session_start,session_size,click_article_id,click_timestamp", lambda r: f"{r.user},1{r.time},{r.time}000,2,{r.item},{r.time}000", "--columns user=user_id,item=click_article_id,time=click_timestamp"),
    Layout("Adressa", "", as_json(eventId=lambda r: r.time, userId=lambda r: f"cx:{r.user}", time=lambda r: r.time, id=lambda r: f"a{r.item}", url=lambda r: "http://x"), "--columns user=userId,item=id,time=time"),
    Layout("KuaiRand", "user_id,video_id,date,hourmin,time_ms,is_click", lambda r: f"{r.user},{r.item},20220408,700,{r.time}000,{r.stars % 2}", "the column 'is_click' holds 0 and 1"),
    Layout("Xing", "user_id\titem_id\tinteraction_type\tcreated_at", lambda r: f"{r.user}\t{r.item}\t{r.stars}\t{r.time}", reads="time"),
    Layout("Spotify playlists, indented", "{", lambda r: f'  "pid": {r.user}, "tracks": [{{"track_uri": "spotify:track:{r.item}"}}],', "not JSON lines"),
    Layout("Spotify playlists, a line each", "", as_json(pid=lambda r: r.user, tracks=lambda r: [{"track_uri": f"t{r.item}"}]), UNNAMED),
    Layout("MyAnimeList", "username,anime_id,my_watched_episodes,my_score,my_last_updated", lambda r: f"k{r.user},{r.item},586,{r.stars},{r.time}", "--columns user=username,item=anime_id,rating=my_score,time=my_last_updated"),
    Layout("Jester, long", "userId,jokeId,rating", lambda r: f"{r.user},{r.item},-{r.stars}.906", "--columns user=userId,item=jokeId,rating=rating"),
    Layout("ModCloth", "item_id,user_id,rating,timestamp,size", lambda r: f"{r.item},{r.user},{r.stars},{r.date:%Y-%m-%d %H:%M:%S}+00:00,", reads="rating time", time=micros),
    Layout("Rent the Runway", "", as_json(user_id=lambda r: f"{r.user}", item_id=lambda r: f"{r.item}", rating=lambda r: f"{r.stars}", review_date=lambda r: f"{r.date:%B} {r.date.day}, {r.date.year}"), reads="rating time", time=day),
    Layout("BeerAdvocate", "brewery_id,review_time,review_overall,review_profilename,beer_name,beer_beerid", lambda r: f"1,{r.time},{r.stars},u{r.user},B,{r.item}", "--columns user=review_profilename,item=beer_beerid,rating=review_overall,time=review_time"),
    Layout("MovieLens tags", "userId,movieId,tag,timestamp", lambda r: f"{r.user},{r.item},funny,{r.time}", reads="time"),
    Layout("MovieLens films", "movieId,title,genres", lambda r: f'{r.item},"Film, The",Comedy', UNNAMED),
    Layout("RecBole items", "item_id:token\tmovie_title:token_seq\trelease_year:token", lambda r: f"{r.item}\tToy Story\t1995", UNNAMED),
    Layout("Foursquare with headings", "userId,venueId,latitude,utcTimestamp", lambda r: f"{r.user},v{r.item},40.7,{r.date:%a %b %d %H:%M:%S} +0000 {r.date:%Y}", reads="time", time=micros, item=lambda r: f"v{r.item}"),
    Layout("Weeplaces", "userid,placeid,datetime,lat,lon", lambda r: f"u{r.user},p{r.item},{r.date:%Y-%m-%dT%H:%M:%S},40.1,-73.5", "--columns user=userid,item=placeid,time=datetime"),
    Layout("Dunnhumby", "household_key,BASKET_ID,DAY,PRODUCT_ID,QUANTITY", lambda r: f"{r.user},27{r.time},1,{r.item},1", "--columns user=household_key,item=PRODUCT_ID,quantity=QUANTITY"),
    Layout("Ta Feng", "TRANSACTION_DT,CUSTOMER_ID,AGE_GROUP,PRODUCT_ID,AMOUNT", lambda r: f"{r.date.month}/{r.date.day}/{r.date.year},{r.user:08d},45-49,4{r.item},1", reads="time", time=day, user=lambda r: f"{r.user:08d}", item=lambda r: f"4{r.item}"),
    Layout("Olist, with the customer of all orders", "order_id,customer_id,customer_unique_id,product_id,order_purchase_timestamp", lambda r: f"o{r.time},c{r.time},{r.user},{r.item},{r.date:%Y-%m-%d %H:%M:%S}", reads="time", time=micros),
    Layout("Olist, a customer for each order", "order_id,customer_id,product_id", lambda r: f"o{r.time},c{r.user}-{r.time},{r.item}", "rows have another user, as if the column numbered rows or orders"),
    Layout("Online Retail II", "Invoice,StockCode,Quantity,InvoiceDate,Price,Customer ID", lambda r: f"1,{r.item}A,12,{r.date:%Y-%m-%d %H:%M:%S},6.95,{r.user}.0", reads="time", time=micros, user=lambda r: f"{r.user}.0", item=lambda r: f"{r.item}A"),
    # --- more exports of shops and of counters of visits ---
    Layout("Shopify, a buyer by address", "Name,Email,Created at,Lineitem quantity,Lineitem name,Lineitem sku,Id", lambda r: f"#1,u{r.user}@x.org,{r.date:%Y-%m-%d %H:%M:%S} +0200,1,Pot,SKU-{r.item},44", "--columns 'user=Email,item=Lineitem sku,time=Created at,quantity=Lineitem quantity'"),
    Layout("Shopify order lines of the API", "order_id,customer_id,variant_id,product_id,quantity,created_at", lambda r: f"1{r.time},{r.user},4{r.item},{r.item},1,{r.date:%Y-%m-%dT%H:%M:%S}-05:00", reads="time", time=lambda r: micros(r) + 18_000_000_000),
    Layout("WooCommerce, headings for people", "Order ID,Order Date,Customer User ID,Billing Email,SKU,Item Name,Quantity", lambda r: f"1{r.time},{r.date:%Y-%m-%d %H:%M},{r.user},u@x,{r.item},Pot,1", reads="time", time=lambda r: r.time // 60 * 60_000_000),
    Layout("Magento orders", "Increment ID,Customer Email,SKU,Qty Ordered,Created At", lambda r: f'9,u{r.user},{r.item},1.0000,"{r.date:%b %d, %Y %I:%M:%S %p}"', reads="time", time=micros, user=lambda r: f"u{r.user}"),
    Layout("Magento order lines: item_id is the line", "item_id,customer_id,qty_ordered,created_at", lambda r: f"{ROWS.index(r)},{r.user},1,{r.date:%Y-%m-%d}", "rows have another item, as if the column numbered rows or orders"),
    Layout("Magento order lines with products", "item_id,product_id,sku,customer_id", lambda r: f"{r.time},{r.item},S{r.item},{r.user}", "two columns look like the item, 'item_id' and 'product_id'"),
    Layout("PrestaShop", "id_order;id_customer;product_id;product_quantity;date_add", lambda r: f"{r.time};{r.user};{r.item};1;{r.date:%Y-%m-%d %H:%M:%S}", reads="time", time=micros),
    Layout("Shopware", "orderNumber;customerNumber;productNumber;quantity;orderDateTime", lambda r: f"1;K{r.user};SW{r.item};1;{r.date:%Y-%m-%dT%H:%M:%S}.000+00:00", reads="time", time=micros, user=lambda r: f"K{r.user}", item=lambda r: f"SW{r.item}"),
    Layout("JTL", "Auftragsnummer;Kundennummer;Artikelnummer;Anzahl;Erstellt am", lambda r: f"1;{r.user};{r.item};1;{r.date:%d.%m.%Y %H:%M:%S}", reads="time", time=micros),
    Layout("Square: a day and a clock", "Date,Time,Customer ID,SKU,Qty", lambda r: f"{r.date:%Y-%m-%d},{r.date:%H:%M:%S},{r.user},K{r.item},1.0", "without the time, say --columns"),
    Layout("Etsy", "Sale Date,Item Name,Buyer,Quantity,Listing ID,Transaction ID", lambda r: f"{r.date:%m/%d/%y},Pot,u{r.user},1,{r.item},{r.time}", "--columns 'user=Buyer,item=Listing ID,time=Sale Date,quantity=Quantity'"),
    Layout("eBay", "Sales Record Number,Buyer Username,Item Number,Item Title,Quantity,Sale Date", lambda r: f"{r.time},b{r.user},{r.item},Pot,1,{r.date:%b-%d-%y}", UNNAMED),
    Layout("Amazon's report to sellers", "amazon-order-id\tpurchase-date\tbuyer-email\tsku\tasin", lambda r: f"1-{r.time}\t{r.date:%Y-%m-%d}\tb{r.user}@m\tS{r.item}\tB{r.item}", "two columns look like the item, 'sku' and 'asin'"),
    Layout("Matomo visits", "idVisit,visitorId,serverTimePretty,actionDetails_url", lambda r: f'{r.time},{r.user:016x},"Nov 3, 2025 18:00:00",https://x/{r.item}', UNNAMED),
    Layout("Matomo purchases", "idvisitor,idaction_sku,server_time,quantity", lambda r: f"{r.user:016x},{r.item},{r.date:%Y-%m-%d %H:%M:%S},1", "--columns user=idvisitor,item=idaction_sku,time=server_time,quantity=quantity"),
    Layout("GA4, flat", "event_date,event_timestamp,user_pseudo_id,item_id", lambda r: f"{r.date:%Y%m%d},{r.time}000000,1{r.user}.17,SKU{r.item}", reads="time", time=micros, user=lambda r: f"1{r.user}.17", item=lambda r: f"SKU{r.item}"),
    Layout("GA4, as BigQuery unnests it", "event_timestamp,event_name,user_pseudo_id,items_item_id", lambda r: f"{r.time}000000,view_item,1{r.user}.17,SKU{r.item}", "--columns user=user_pseudo_id,item=items_item_id,time=event_timestamp"),
    Layout("GA4, nested", "", as_json(event_timestamp=lambda r: f"{r.time}", user_pseudo_id=lambda r: f"1.{r.user}", items=lambda r: [{"item_id": r.item}]), UNNAMED),
    Layout("MongoDB", "", as_json(user_id=lambda r: {"$oid": f"{r.user}"}, item_id=lambda r: r.item), "the user is a list or an object, not an id"),
    Layout("lists in JSON", "", as_json(user=lambda r: r.user, item=lambda r: [r.item]), "the item is a list or an object, not an id"),
    Layout("a cell of several items", "customer,sku", lambda r: f"{r.user},S{r.item};S{r.item + 1}", "items look like lists, such as"),
    # --- orders and events that are no interaction ---
    Layout("orders with a status", "customer_id,sku,status,created_at", lambda r: f"{r.user},{r.item},{('paid', 'Cancelled')[r.stars % 2]},{r.date:%Y-%m-%d}", "the column 'status' holds cancelled and paid, and lines with cancelled are usually no interactions"),
    Layout("orders, all paid", "customer_id,sku,status", lambda r: f"{r.user},{r.item},paid"),
    Layout("articles that came back", "customer_id,sku,returned", lambda r: f"{r.user},{r.item},{('no', 'yes')[r.stars % 2]}", "the column 'returned' holds no and yes, and lines with yes"),
    Layout("taken out of the cart", "user_id,item_id,event_type", lambda r: f"{r.user},{r.item},{('cart', 'remove_from_cart')[r.stars % 2]}", "and lines with remove_from_cart are usually no interactions"),
    Layout("sales and returns", "customer_id,sku,type,quantity", lambda r: f"{r.user},{r.item},{('SALE', 'RETURN')[r.stars % 2]},1", "holds return and sale"),
    Layout("WooCommerce's status", "customer_id,sku,status", lambda r: f"{r.user},{r.item},wc-{('completed', 'cancelled')[r.stars % 2]}", "lines with wc-cancelled"),
    Layout("impressions", "user_id,item_id,event", lambda r: f"{r.user},{r.item},{('click', 'impression')[r.stars % 2]}", "lines with impression"),
    Layout("tracks that were skipped", "user_id,track_id,skipped", lambda r: f"{r.user},{r.item},{r.stars > 2}", "lines with true"),
    Layout("labels of -1 and 1", "user,item,label", lambda r: f"{r.user},{r.item},{1 if r.stars > 2 else -1}", "holds -1 and 1, and lines with -1"),
    Layout("ratings of -1 and 1", "user,item,rating", lambda r: f"{r.user},{r.item},{1 if r.stars > 2 else -1}", "--columns user=user,item=item,rating=rating"),
    Layout("guests under a name", "user_id,item_id", lambda r: f"{'guest' if r.stars == 1 else r.user},{r.item}", "the user is missing: 'guest'"),
    Layout("a table of psql", " user | item | rating\n------+------+--------", lambda r: f" {r.user:>4} | {r.item:>4} | {r.stars:>6}", "the line has 1 fields"),
    Layout("bare URLs with commas", "user,item", lambda r: f"{r.user},https://x.org/p?id={r.item}&a=1,2", "the line has 2 fields, but most lines have 3"),
    Layout("lines of a web server", "", lambda r: f'127.0.0.1 - - [29/Nov/2026:16:21:11 +0000] "GET /item/{r.item} HTTP/1.1" 200 {r.user}', UNNAMED),
    Layout("likes", "user_id,item_id,liked", lambda r: f"{r.user},{r.item},{r.stars % 2}", "--columns user=user_id,item=item_id"),
    Layout("ratings of 0 and 1", "user_id,item_id,rating", lambda r: f"{r.user},{r.item},{r.stars % 2}", "the column 'rating' holds 0 and 1"),
    # --- dates ---
    Layout("a date under another name", "user,item,day_of_order", lambda r: f"{r.user},{r.item},{r.date:%Y-%m-%d}", "looks like one: add time=day_of_order to the option, or leave it out"),
    Layout("a date that some rows lack", "user,item,shipped", lambda r: f"{r.user},{r.item},{r.date:%d.%m.%Y}" if r.stars > 1 else f"{r.user},{r.item},", "looks like one: add time=shipped to the option"),
    Layout("day-month-year", "user,item,date", lambda r: f"{r.user},{r.item},{r.date:%d-%m-%Y}", reads="time", time=day),
    Layout("day-name-year", "user,item,date", lambda r: f"{r.user},{r.item},{r.date:%d-%b-%Y %H:%M:%S}", reads="time", time=micros),
    Layout("year/month/day", "user,item,date", lambda r: f"{r.user},{r.item},{r.date:%Y/%m/%d %H:%M:%S}", reads="time", time=micros),
    Layout("AM and PM", "user,item,date", lambda r: f"{r.user},{r.item},{r.date:%m/%d/%Y %I:%M:%S %p}", reads="time", time=micros),
    Layout("days as one number", "user,item,date", lambda r: f"{r.user},{r.item},{r.date:%Y%m%d}", reads="time", time=lambda r: int(f"{r.date:%Y%m%d}")),
    Layout("month/day/year of two digits", "user,item,date", lambda r: f"{r.user},{r.item},{r.date:%m/%d/%y}", "the time has a year of two digits"),
    Layout("weeks", "user,item,date", lambda r: f"{r.user},{r.item},{r.date:%G-W%V}", "without the time, say --columns user=user,item=item"),
    Layout("names of zones", "user,item,date", lambda r: f"{r.user},{r.item},{r.date:%Y-%m-%d %H:%M:%S} CET", "is neither a number nor a date as in 2025-12-31 18:30:00+01:00"),
    # --- forms of tables ---
    Layout("a title above the header", "Sales of May\n\nuser,item,rating", lambda r: f"{r.user},{r.item},{r.stars}", "the headings are on line 3: delete what is above: tail -n +3"),
    Layout("a title with separators", "Sales of May,,\nuser,item,rating", lambda r: f"{r.user},{r.item},{r.stars}", "the headings are on line 2: delete what is above: tail -n +2"),
    Layout("aligned by blanks", "user   item   rating", lambda r: f"{r.user:<6} {r.item:<6} {r.stars}", "make them one: sed"),
    Layout("an empty last column", "user,item,rating,", lambda r: f"{r.user},{r.item},{r.stars},", reads="rating"),
    Layout("apostrophes for quotes", "'user','item','rating'", lambda r: f"'{r.user}','{r.item}','{r.stars}'", "the rating is not a number"),
    Layout("carriage returns alone", "user,item\r1,2\r", lambda r: f"{r.user},{r.item}\r", "tr '\\r'"),
    Layout("EANs that a spreadsheet has cut", "customer;ean", lambda r: f"{r.user};4,00601E+12", "the item is a number that a spreadsheet has cut: '4,00601E+12'"),
    Layout("Hive", "user\x01item", lambda r: f"{r.user}\x01{r.item}", "cannot tell what separates the columns"),
    Layout("sequences of items", "", lambda r: ",".join(map(str, range(r.time, r.time + 3 + r.stars))), UNNAMED),
    # --- what is no table of interactions ---
    Layout("JSON array", "[", lambda r: json.dumps({"user": r.user, "item": r.item}) + ",", "json.load(sys.stdin)]"),
    Layout("ARFF", "@relation ratings", lambda r: f"{r.user},{r.item},{r.stars}", "an ARFF file"),
    Layout("MatrixMarket", "%%MatrixMarket matrix coordinate real general", lambda r: f"{r.user} {r.item} {r.stars}", "begins with a comment"),
    Layout("KONECT and SNAP", "# user item", lambda r: f"{r.user}\t{r.item}", "grep -v"),
    Layout("Netflix Prize", "1:", lambda r: f"{r.user},{r.stars},{r.date:%Y-%m-%d}", "write the film into each line"),
    Layout("libFM", "", lambda r: f"{r.stars} {r.user}:1 {r.item + 100}:1", "a libFM or libSVM file"),
    Layout("SQL dump", "", lambda r: f"INSERT INTO r VALUES ({r.user},{r.item},{r.stars});", "an SQL dump"),
    Layout("Python tuples", "", lambda r: f"({r.user}, {r.item}, {r.stars})", "lines of Python"),
    Layout("Markdown", "| user | item |", lambda r: f"| {r.user} | {r.item} |", "a Markdown table"),
    Layout("labels of words", "user,item,label", lambda r: f"{r.user},{r.item},{r.stars > 3}", "lines with false are usually no interactions"),
    Layout("decimal commas in quotes", "user,item,rating", lambda r: f'{r.user},{r.item},"{r.stars},5"', reads="rating", rating=lambda r: r.stars + 0.5),
    Layout("days of two digits", "user,item,date", lambda r: f"{r.user},{r.item},{r.date:%d.%m.%y}", "the time has a year of two digits"),
    Layout("a film's title", "userId,title,rating", lambda r: f"{r.user},Film {r.item},{r.stars}", "--columns user=userId,item=title,rating=rating"),
    Layout("web page", "<!doctype html>", lambda r: f"<p>{r.user},{r.item}", "a web page or XML"),
    Layout("Excel's sep", "sep=;", lambda r: f"{r.user};{r.item}", "delete that line"),
    Layout("leave-one-out between blanks", "", lambda r: f"{r.time} {r.item} {r.stars}", "user=0,item=1..."),
]  # fmt: skip


def meant(layout: Layout) -> dict[tuple[str, str], tuple[float | None, int | None]]:
    return {
        (layout.user(row), layout.item(row)): (
            layout.rating(row) if "rating" in layout.reads else None,
            layout.time(row) if "time" in layout.reads else None,
        )
        for row in ROWS
    }


def found_in(path: Path) -> dict[tuple[str, str], tuple[float | None, int | None]]:
    read = read_data_file(path).interactions
    users, items = read.user_ids[read.users].tolist(), read.item_ids[read.items].tolist()
    none = [None] * read.size
    ratings = none if read.ratings is None else read.ratings.tolist()
    times = none if read.timestamps is None else read.timestamps.tolist()
    pairs = zip(users, items, strict=True)
    return dict(zip(pairs, zip(ratings, times, strict=True), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_a_layout_is_read_as_meant_or_refused(tmp_path, layout) -> None:
    path = tmp_path / "a file.txt"
    path.write_text("\n".join([*([layout.header] if layout.header else []), *map(layout.line, ROWS)]) + "\n")
    if layout.refused is None:
        assert found_in(path) == meant(layout)
    else:
        with pytest.raises(DataError) as caught:
            read_data_file(path)
        assert layout.refused in str(caught.value)


@pytest.mark.parametrize(
    ("name", "lines", "refused"),
    [
        ("LightGCN", lambda user, items: [user, *items], None),
        ("CiteULike: the count first", lambda user, items: [len(items), *items], "begins with the number of its items"),
        ("baskets", lambda user, items: sorted(items), UNNAMED),
        ("two numbers a line", lambda user, items: [user, *items[:1]], TOLD),
        ("three numbers a line", lambda user, items: [user, *items[:2]], "user=0,item=1..."),
    ],
)
def test_lists_need_evidence_that_tables_do_not_have(tmp_path, name, lines, refused) -> None:
    rng = np.random.default_rng(1)
    lists = [[int(item) for item in rng.choice(40, 3 + user, replace=False)] for user in range(9)]
    path = tmp_path / "lists.txt"
    path.write_text("".join(" ".join(map(str, lines(user, items))) + "\n" for user, items in enumerate(lists)))
    if refused is None:
        assert set(found_in(path)) == {(str(user), str(item)) for user, items in enumerate(lists) for item in items}
    else:
        with pytest.raises(DataError) as caught:
            read_data_file(path)
        assert refused in str(caught.value)


def test_parquet_is_read_as_the_same_table_in_text(tmp_path) -> None:
    table = pl.DataFrame(
        {"customer_id": [row.user for row in ROWS], "sku": [f"S{row.item}" for row in ROWS],
         "created_at": [row.date for row in ROWS], "stars": [str(row.stars) for row in ROWS]}
    )  # fmt: skip
    table.write_parquet(tmp_path / "orders.parquet")
    table.write_csv(tmp_path / "orders.csv")
    assert found_in(tmp_path / "orders.parquet") == found_in(tmp_path / "orders.csv")
    assert len(found_in(tmp_path / "orders.csv")) == len(ROWS)


# --- orders: returns, guests, quantities, rows that cannot be read ----------------------------------------------------


def test_returns_cancel_what_was_bought(tmp_path) -> None:
    path = tmp_path / "orders.csv"
    rows = ["ann,pot,2,1", "ann,pot,-2,9", "ann,pan,3,2", "ann,pan,-1,8", "bob,pot,1,3", "bob,cup,0,4", "bob,pot,2,5"]
    path.write_text("\n".join(["customer,sku,quantity,timestamp", *rows]) + "\n")
    assert found_in(path) == {("ann", "pan"): (None, 2), ("bob", "pot"): (None, 5)}
    said = str(read_data_file(path))
    assert "2 pairs left out, of which as much came back as was bought" in said
    assert "1 repeated pairs of user and item: the latest of each is used" in said


def test_rows_that_cannot_be_read_are_left_out_up_to_a_number(tmp_path) -> None:
    path = tmp_path / "orders.csv"
    rows = ["1,2,3", ",2,4", "NULL,2,4", "2,3", "2,4,good", "user,item,rating", "", "3,5,1"]
    path.write_text("\n".join(["user,item,rating", *rows]) + "\n")
    with pytest.raises(DataError, match="5 more rows cannot be read: leave them out with --skip-bad 6") as caught:
        read_data_file(path, skip_bad=5)
    assert (caught.value.line, caught.value.column) == (3, "'user' (user)")
    found = read_data_file(path, skip_bad=6)
    assert (found.rows, found.bad, [error.line for error in found.left_out]) == (2, 6, [3, 4, 5, 6, 7, 8])
    assert "6 rows left out (line 3: the user is empty, line 4: the user is missing: 'NULL'" in str(found)
    assert "the user is the heading again: 'user'" in str(found)


def test_what_each_column_was_taken_for_is_said(tmp_path) -> None:
    path = tmp_path / "plays.tsv"
    path.write_text(
        "userID\tartistID\tweight\tplay_hours\tdate\n7\t51\t13\t2.5\t2020-01-01\n7\t52\t1\t.5\t2020-01-02\n"
    )
    said = str(read_data_file(path))
    assert "columns user=userID,item=artistID,time=date by their headings" in said
    assert "the first: 7 51 2020-01-01 / 7 52 2020-01-02" in said
    assert "not read: 'weight', 'play_hours'" in said
    assert "times from 2020-01-01 00:00:00 to 2020-01-02 00:00:00" in said


def test_a_converted_file_is_read_as_the_same(tmp_path) -> None:
    path, made = tmp_path / "orders.txt", tmp_path / "made.csv"
    path.write_text("".join(f"{row.date:%Y-%m-%dT%H:%M:%S}.25Z;{row.user};{row.item};{row.stars},5\n" for row in ROWS))
    file = read_data_file(path, parse_columns("time=0,user=1,item=2,rating=3"))
    write_data_file(file, made)
    assert made.read_text().splitlines()[0] == "user,item,rating,time"
    again, before = read_data_file(made).interactions, file.interactions
    for name in ("user_ids", "item_ids", "items", "ratings", "timestamps", "indptr"):
        assert getattr(again, name).tolist() == getattr(before, name).tolist(), name
    with pytest.raises(DataError, match="cannot write the file: File exists"):
        write_data_file(file, made)


@pytest.mark.parametrize("timed", [True, False])
def test_the_order_of_the_lines_does_not_change_a_split(tmp_path, timed) -> None:
    times = [5 + row.item % 2 for row in ROWS]
    lines = [f"{row.user},{row.item}" + f",{time}" * timed for row, time in zip(ROWS, times, strict=True)]
    lines += lines[::7]
    splits = []
    for seed in range(3):
        path = tmp_path / f"{seed}.csv"
        shuffled = np.random.default_rng(seed).permutation(lines)
        path.write_text("\n".join(["user,item" + ",time" * timed, *shuffled]) + "\n")
        split = load_split(str(path), seed=4)
        splits.append((split.words, split.test.items.tolist(), split.test.users.tolist()))
        rest = load_split(str(path), seed=4, kind="random").test
        splits[-1] += (set(zip(rest.users.tolist(), rest.items.tolist(), strict=True)),)
    assert splits[0] == splits[1] == splits[2]
    assert ("drawn with seed 4 from several of one time" in splits[0][0]) == timed
