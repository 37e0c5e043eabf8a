"""A server that speaks S3 (moto's), in a thread of the test's own process: objects and unfinished uploads."""

import logging
from collections.abc import Iterator
from typing import Any, Final

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

ACCESS_KEY: Final = "AKIDEXAMPLE7Q"
SECRET_KEY: Final = "s3cret+Of/The=Bucket"
REGION: Final = "eu-central-1"
BUCKET: Final = "outputs-of-a-test"


class S3:
    """One bucket, as an administrator sees it."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(s3={"addressing_style": "path"}),
        )
        self.client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
        }

    def keys(self) -> list[str]:
        listed = self.client.list_objects_v2(Bucket=BUCKET)
        return sorted(one["Key"] for one in listed.get("Contents", []))

    def read(self, key: str) -> bytes:
        content: bytes = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return content

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def begin_upload(self, key: str) -> str:
        """What a killed process leaves: a part, and an upload that nobody completes."""
        upload_id: str = self.client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
        self.client.upload_part(Bucket=BUCKET, Key=key, UploadId=upload_id, PartNumber=1, Body=b"half")
        return upload_id

    def unfinished(self) -> list[str]:
        """The keys of its unfinished uploads."""
        listed = self.client.list_multipart_uploads(Bucket=BUCKET)
        return sorted(one["Key"] for one in listed.get("Uploads", []))


@pytest.fixture
def s3() -> Iterator[S3]:
    """A server of the test's own, with one empty bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        made = S3(f"http://{host}:{port}")
        yield made
        for key in list(made.keys()):
            made.client.delete_object(Bucket=BUCKET, Key=key)
        for upload in made.client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
            made.client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])
        made.client.delete_bucket(Bucket=BUCKET)
    finally:
        server.stop()
