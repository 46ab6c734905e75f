#!/bin/sh
# Creates the service's database and its role, which is no superuser. The postgres image runs this once, when its data
# directory is empty (/docker-entrypoint-initdb.d).
set -eu

psql --set ON_ERROR_STOP=1 --set password="$ROLE_PASSWORD" --dbname postgres <<'SQL'
CREATE ROLE hushrec LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD :'password';
CREATE DATABASE hushrec OWNER hushrec;
SQL
