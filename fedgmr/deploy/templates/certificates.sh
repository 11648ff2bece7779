#!/bin/sh
# Makes the SuperLink's certificate, its authority, and the secret between SuperLink and SuperExec.
# Usage: sh certificates.sh FOLDER NAME [NAME ...]
# NAME: a host name or IP address under which nodes reach the SuperLink; localhost is added for the server itself.
set -eu
folder=$1
shift
names="DNS:localhost,IP:127.0.0.1"
for name in "$@"; do
    case $name in
    *:*) kind=IP ;;
    *[!0-9.]*) kind=DNS ;;
    *) kind=IP ;;
    esac
    names="$names,$kind:$name"
done
umask 077
mkdir -p "$folder"
cd "$folder"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -days 3650 -subj "/CN=fedgmr authority" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -keyout ca.key -out ca.crt
openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -nodes -subj "/CN=$1" \
    -keyout superlink.key -out superlink.csr
cat >superlink.ext <<END
basicConstraints=CA:FALSE
keyUsage=critical,digitalSignature
extendedKeyUsage=serverAuth
authorityKeyIdentifier=keyid
subjectAltName=$names
END
openssl x509 -req -in superlink.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 -extfile superlink.ext \
    -out superlink.crt
openssl rand -out superexec.secret 32
rm -f superlink.csr superlink.ext ca.srl
chmod 644 ca.crt superlink.crt
