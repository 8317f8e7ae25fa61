"""Faces of a `views.Document`: a terminal, one offline page, Markdown, a notebook. None of them knows a study.

shared.py     what all of them say alike: cells, legends, amounts, whether a view shows anything
console.py    print_document(document, console, full=False)
page.py       write_page(document, path), page_of(document), body_of(document) for pages that hold more
charts.py     geometry of the page's pictures: ticks, paths, and the data of those that its script draws
markdown.py   markdown_of(document)
notebook.py   fragment_of(document)
"""
