"""A DAG with documentation, part of which a page must not take as it is."""

from paceline import DAG, task

DOC = """
    # Price lists

    Loads *all* price lists; see [the runbook](https://wiki.shop.internal/prices), not [this](javascript:alert(1)).

    | step | owner |
    |---|---|
    | load | ada |

    <script>window.taken = 1</script><img src=x onerror="window.taken = 1"><iframe src="https://shop.internal"></iframe>
    <a href="https://shop.internal" onclick="window.taken = 1" style="position: fixed">press</a>
"""

with DAG("documented", schedule=None, tags=["tests"], doc_md=DOC) as documented:

    @task(doc_md="Rows go to `warehouse.prices`.\n\n- one for each shop")
    def load():
        pass

    load()
