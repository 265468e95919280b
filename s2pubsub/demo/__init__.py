"""The demo, ``s2pubsub demo``: a chat whose answers outlive the request, the page and the web server that made them.

``app.create_app`` is the Flask application, for any WSGI server with threads. It stands on the public parts of the
package only; nothing in the package stands on it.
"""
